"""Runs the chart's tests and counts them. Arguments: names of tests, as for unittest; none = all."""
import pathlib
import sys
import unittest

here = pathlib.Path(__file__).resolve().parent
sys.path.insert(0, str(here))


class Result(unittest.TextTestResult):
    """Counts each row of a table (subTest) as a test of its own."""

    rows = 0

    def addSubTest(self, test, subtest, error):
        super().addSubTest(test, subtest, error)
        self.rows += 1


loader = unittest.TestLoader()
suite = loader.loadTestsFromNames(sys.argv[1:]) if sys.argv[1:] else loader.discover(str(here), pattern="test_*.py")
result = unittest.TextTestRunner(resultclass=Result, verbosity=1, stream=sys.stdout).run(suite)
failed = len(result.failures) + len(result.errors)
passed = max(result.testsRun + result.rows - failed, 0)
ok = result.wasSuccessful() and passed > 0
# The first of the two lines is what cargo prints, so that one counter serves all tests.
print(f"test result: {'ok' if ok else 'FAILED'}. {passed} passed; {max(failed, 0 if ok else 1)} failed;")
print(f"{passed} passed, {failed} failed")
sys.exit(0 if ok else 1)
