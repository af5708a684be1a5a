"""What translations of other libraries' networks share: tensors with their batch, and what some operators are made of."""
