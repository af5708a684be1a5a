"""Sets of problems that come with the package."""
