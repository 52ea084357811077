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

def xxh64(data: int, size: int, seed: int) -> int: ...

class DiskReader:
    def __init__(
        self,
        paths: list[str],
        identities: int,
        runs: int,
        num_runs: int,
        parts: int,
        num_parts: int,
        row_bytes: int,
        checked_block_bytes: int,
        checksum_seed: int,
        reader: str,
        direct_io: bool,
        num_threads: int,
        mmap_budget_bytes: int,
    ) -> None: ...
    def read(self, row_ids: int, count: int, out: int) -> None: ...
    def stats(self) -> dict[str, int]: ...
    def backend_name(self) -> str: ...
    def direct_alignment(self) -> int: ...
    def find_changed(self) -> int: ...
    def take_notes(self) -> list[str]: ...
