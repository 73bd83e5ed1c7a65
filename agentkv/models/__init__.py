"""Language models on this machine, and scripted models, behind one interface."""
