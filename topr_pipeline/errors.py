"""The one error class for what a user can mend."""


class ToprError(ValueError):
    """Something in the input, the configuration or on the disk that the user can mend.

    Its message has three parts: what is wrong with which value, where it came from (file and row,
    YAML key), and what would be accepted or done. It is shown without a traceback.
    """
