#pragma once

namespace gramary::threads {

// Each works one part of the core from several threads at once, and ends the program where a
// result is wrong. What races is for the sanitizer to say.

// The shared pool and the row service's: ranges from several threads, sleeping workers, an end.
void try_pools();
// The gate that `close` waits at.
void try_gate();
// The disk reader, by each of its backends, while the file's attributes and then its bytes change.
void try_disk();
// The row service: both lanes of two tenants, requests given up, delays, failures, a tenant that
// leaves, and an end with a request in flight.
void try_service();

}  // namespace gramary::threads
