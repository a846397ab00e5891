"""What is tuned: a family is the members that free parameters and a budget leave."""
