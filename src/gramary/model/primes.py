"""Primes by a deterministic primality test, for the head sizes of a hashed table."""

from __future__ import annotations

_SMALL_PRIMES = (2, 3, 5, 7, 11, 13, 17, 19, 23, 29, 31, 37)
# Miller-Rabin to these bases decides every number below this bound.
# Source: J. Sorenson and J. Webster, "Strong pseudoprimes to twelve prime bases", 2015.
_PROVEN_BOUND = 318665857834031151167461


def is_prime(number: int) -> bool:
    """Returns whether a number is prime, decided exactly.

    Args:
        number: any integer below 3.18e23.

    Raises:
        OverflowError: the number is beyond the range in which the test is proven.
    """
    if number < 2:
        return False
    for prime in _SMALL_PRIMES:
        if number % prime == 0:
            return number == prime
    if number >= _PROVEN_BOUND:
        raise OverflowError(f"is_prime is proven below {_PROVEN_BOUND}, got {number}")
    return all(_is_probable_prime(number, base) for base in _SMALL_PRIMES)


def _is_probable_prime(number: int, base: int) -> bool:
    """Returns whether an odd number passes the strong (Miller-Rabin) test to one base."""
    twos = ((number - 1) & -(number - 1)).bit_length() - 1
    power = pow(base, (number - 1) >> twos, number)
    if power in (1, number - 1):
        return True
    for _ in range(twos - 1):
        power = power * power % number
        if power == number - 1:
            return True
    return False


def primes_from(start: int, *, skip: int, count: int) -> tuple[int, ...]:
    """Returns `count` consecutive primes that are at least `start`, after skipping `skip` primes.

    Args:
        start: the first number that may be taken.
        skip: primes to leave out, 0 or more.
        count: primes to return, 0 or more.
    """
    found: list[int] = []
    number = max(start, 2)
    while len(found) < skip + count:
        if is_prime(number):
            found.append(number)
        number += 1
    return tuple(found[skip:])


__all__ = ["is_prime", "primes_from"]
