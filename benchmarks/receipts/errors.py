"""What receipts refuse."""

from gramary.errors import GramaryError


class ReceiptError(GramaryError):
    """A receipt does not follow its schema, or holds what it must not."""
