"""Run the simulated server alone."""

from gateway.testing.runtimes.openhands.server import main

if __name__ == "__main__":
    main()
