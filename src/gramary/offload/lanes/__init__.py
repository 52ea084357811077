"""The lanes that a batch's rows may take, from its tensors to its rows."""
