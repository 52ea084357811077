"""The environments in which the tests have to pass: how each is made, and how tests run in it."""
