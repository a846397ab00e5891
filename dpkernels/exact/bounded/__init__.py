"""Tables, certificates and samplers of mechanisms on an interval."""
