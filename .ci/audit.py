"""Compare a lock with the database of known vulnerabilities, by pip-audit.

    audit.py LOCK

Exit code 1 for a vulnerable version. Packages that the database does not have are counted; without
a connection to it these are all.
"""

from __future__ import annotations

import json
import subprocess
import sys

command = [sys.executable, "-m", "pip_audit", "--disable-pip", "--require-hashes", "-f", "json"]
done = subprocess.run([*command, "-r", sys.argv[1]], stdout=subprocess.PIPE, text=True, check=False)
if not done.stdout:
    sys.exit("pip-audit failed")
packages = json.loads(done.stdout)["dependencies"]
audited = [one for one in packages if "skip_reason" not in one]
vulnerable = [one for one in audited if one["vulns"]]
for one in vulnerable:
    for found in one["vulns"]:
        fixed = ", ".join(found["fix_versions"]) or "no version"
        print(f"{one['name']} {one['version']}: {found['id']}, fixed in {fixed}")
print(
    f"{len(audited)} of {len(packages)} packages are in the database; vulnerable: {len(vulnerable)}"
)
if not audited:
    print("not audited: the database cannot be reached, or has none of the packages")
sys.exit(1 if vulnerable else 0)
