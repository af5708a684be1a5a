"""Where tiles are computed: `cpu`, `cuda`, `null`. A backend knows memory, copies and kernels; it never sees a plan."""
