"""What the reader fuzzers and the tests of the readers share: seeds, damage, truth, verdict."""
