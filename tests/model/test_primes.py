"""Primality against a sieve, and on the numbers that fool weaker tests."""

import pytest

from gramary.model.primes import is_prime, primes_from


def sieve(end: int) -> list[int]:
    """Returns all primes below `end` by Eratosthenes."""
    is_left = bytearray([1]) * end
    is_left[:2] = b"\0\0"
    for number in range(2, int(end**0.5) + 1):
        if is_left[number]:
            is_left[number * number :: number] = bytes(len(range(number * number, end, number)))
    return [number for number in range(end) if is_left[number]]


def test_equals_the_sieve() -> None:
    assert [n for n in range(-3, 30000) if is_prime(n)] == sieve(30000)


@pytest.mark.parametrize(
    "pseudoprime",
    [
        2047,  # strong to base 2
        1373653,  # to 2, 3
        25326001,  # to 2, 3, 5
        3215031751,  # to 2, 3, 5, 7
        341550071728321,  # to the first seven primes
        3825123056546413051,  # to the first nine
        561 * 2821,
        (2**31 - 1) ** 2,
    ],
)
def test_strong_pseudoprimes_are_composite(pseudoprime: int) -> None:
    assert not is_prime(pseudoprime)


@pytest.mark.parametrize("prime", [2, 20000003, 2**31 - 1, 2**40 - 87, 2**61 - 1, 2**64 - 59])
def test_known_primes(prime: int) -> None:
    assert is_prime(prime)


def test_beyond_the_proven_range() -> None:
    with pytest.raises(OverflowError, match="proven below"):
        is_prime(2**89 - 1)


@pytest.mark.parametrize("start", [0, 1, 2, 3, 97, 98, 7919])
def test_primes_from(start: int) -> None:
    expected = [prime for prime in sieve(10000) if prime >= start]
    assert primes_from(start, skip=0, count=5) == tuple(expected[:5])
    assert primes_from(start, skip=7, count=3) == tuple(expected[7:10])
    assert primes_from(start, skip=7, count=0) == ()
