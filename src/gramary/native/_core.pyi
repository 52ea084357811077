# Types of the compiled module; its sources are the bind.cpp files of csrc/.

have_liburing: bool

def detected_simd_level() -> int: ...
def simd_level() -> int: ...
def set_simd_level(level: int) -> None: ...
def default_num_threads() -> int: ...
def set_default_num_threads(num_threads: int) -> None: ...
def shared_num_threads() -> int: ...

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

class RowCodec:
    def __init__(self, encoding: int, row_dim: int, scale: float) -> None: ...
    @property
    def row_bytes(self) -> int: ...
    def lookup(
        self,
        rows: int,
        first_row: int,
        num_rows: int,
        num_table_rows: int,
        row_ids: int,
        count: int,
        output: int,
        out: int,
        is_sent_on: bool,
    ) -> int: ...
    def embed(
        self,
        hasher: NgramHasher,
        rows: int,
        first_row: int,
        num_rows: int,
        token_ids: int,
        tokens_are_64: bool,
        num_tokens: int,
        starts: int,
        num_requests: int,
        history: int,
        history_is_64: bool,
        output: int,
        out: int,
    ) -> int: ...
    def decode(self, encoded: int, count: int, output: int, positions: int, out: int) -> None: ...

def xxh64(data: int, size: int, seed: int) -> int: ...
def lane_shape() -> tuple[int, int]: ...
def read_blocks_raw(
    path: str, offsets: int, count: int, block_bytes: int, num_threads: int, depth: int
) -> int: ...
def read_rows_raw(path: str, offsets: int, count: int, row_bytes: int, out: int) -> int: ...
def pack_blocks(
    row_bytes: int,
    rows_per_block: int,
    block_bytes: int,
    seed: int,
    rows: int,
    num_rows: int,
    first_block: int,
    blocks: int,
) -> None: ...
def find_bad_block(
    block_bytes: int, seed: int, blocks: int, num_blocks: int, first_block: int
) -> int: ...

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
    def address(self) -> int: ...
    def backend_name(self) -> str: ...
    def direct_alignment(self) -> int: ...
    def find_changed(self) -> int: ...
    def set_script(self, faults: int, count: int) -> None: ...
    def take_notes(self) -> list[str]: ...

ring_layout: dict[str, int]

class RowService:
    def __init__(
        self,
        base: int,
        host_slots: list[list[int]],
        stream_slots: list[list[int]],
        inputs: list[list[int]],
        sizes: list[int],
        layers: list[tuple[list[int], list[int], list[int], list[int]]],
        poll: str,
        num_threads: int,
    ) -> None: ...
    def start(self) -> None: ...
    def stop(self) -> None: ...
    def run(self, parent: int) -> None: ...
    def trace(self, on: bool) -> None: ...
    def take_spans(self) -> list[tuple[int, int, int, int, int]]: ...
    def hold(self, held: bool) -> None: ...
    def set_script(
        self, min_delay_us: int, max_delay_us: int, fail_every: int, seed: int
    ) -> None: ...

def wait_word(address: int, timeout_s: float) -> bool: ...
def load_u32(address: int) -> int: ...
def load_u64(address: int) -> int: ...
def store_u32(address: int, value: int) -> None: ...
def store_u64(address: int, value: int) -> None: ...
def swap_u64(address: int, expected: int, value: int) -> bool: ...
def find_places(
    row_ids: int, count: int, first_row: int, end_row: int, places: int, found: int
) -> int: ...
def first_wrong_row_id(row_ids: int, count: int, num_table_rows: int) -> int: ...

class HostMapping:
    address: int
    mapped_bytes: int
    page_bytes: int
    huge_bytes: int
    on_numa_node: bool
    descriptor: int
    @staticmethod
    def create(num_bytes: int, pages: int, huge_page_bytes: int, numa_node: int) -> HostMapping: ...
    def populate(self) -> None: ...
    def close(self) -> None: ...
