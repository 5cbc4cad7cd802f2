"""Run the simulated server alone."""

from gateway.testing.runtimes.herm.server import main

if __name__ == "__main__":
    main()
