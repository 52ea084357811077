"""The row service as an engine sees it: on threads, in a process, or shared by ranks."""
