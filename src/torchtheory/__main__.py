"""`python -m torchtheory` is `torchtheory`."""

from torchtheory.cli.entry import main

if __name__ == "__main__":
    main()
