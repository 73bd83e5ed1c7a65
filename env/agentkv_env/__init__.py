"""The web environment: a browser that reads pages and executes actions, and sites to act on."""
