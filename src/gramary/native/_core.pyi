# Types of the compiled module; its sources are the bind.cpp files of csrc/.

have_liburing: bool

def detected_simd_level() -> int: ...
def simd_level() -> int: ...
def set_simd_level(level: int) -> None: ...
def default_num_threads() -> int: ...
def set_default_num_threads(num_threads: int) -> None: ...

class NgramHasher:
    def __init__(
        self,
        vocab_size: int,
        eos_token_id: int,
        multipliers: list[int],
        sizes: list[int],
        offsets: list[int],
    ) -> None: ...
    def ngram_ids(
        self,
        token_ids: int,
        tokens_are_64: bool,
        num_tokens: int,
        starts: int,
        num_requests: int,
        history: int,
        history_is_64: bool,
        ids: int,
    ) -> int: ...
