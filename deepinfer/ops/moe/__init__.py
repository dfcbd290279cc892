"""Expert routing and the activation between the two expert GEMMs."""
