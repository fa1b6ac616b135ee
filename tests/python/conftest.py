"""With EVO_TEST_MAY_SKIP, words apart by spaces: a skipped test whose name has none of them fails the run."""
import os

skipped = []


def pytest_runtest_logreport(report):
    if report.skipped:
        skipped.append(report.nodeid)


def pytest_collectreport(report):
    if report.skipped:
        skipped.append(report.nodeid)


def pytest_sessionfinish(session, exitstatus):
    allowed = os.environ.get("EVO_TEST_MAY_SKIP")
    wrong = [] if allowed is None else [name for name in skipped if not any(word in name for word in allowed.split())]
    if wrong:
        print("\nskipped, and not on the list of tests that may:", *wrong, sep="\n")
        session.exitstatus = 1
