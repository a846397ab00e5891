"""Tables, certificates and samplers of additive noise."""
