"""What tests/chaos/run and tests/soak/run share: a cluster whose processes can be disturbed, and looks at what is left."""
