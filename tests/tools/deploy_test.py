#!/usr/bin/env python3
"""Checks the files in deploy/: scripts by their shell, YAML by the schemas of Kubernetes and Kubeflow Trainer.

The schemas come from the packages kubernetes-validate and kubeflow-trainer-api, and the check of a bill of materials
from spdx-tools. Where they are not installed, only those tests are skipped.
"""
import hashlib
import json
import pathlib
import re
import shutil
import subprocess
import tempfile
import unittest

ROOT = pathlib.Path(__file__).resolve().parent.parent.parent
DEPLOY = ROOT / "deploy"
VERSION = "1.31"  # of Kubernetes


def documents():
    import yaml
    for file in sorted(DEPLOY.glob("kubernetes/*.yaml")):
        for document in yaml.safe_load_all(file.read_text()):
            yield file.name, document


class DeployTest(unittest.TestCase):
    def test_scripts_are_shell(self):
        scripts = [*DEPLOY.glob("slurm/*.sbatch"), *DEPLOY.glob("mpi/*.sh")]
        self.assertEqual(len(scripts), 3)
        for script in scripts:
            subprocess.run(["bash", "-n", script], check=True)

    def test_each_file_has_its_row_in_the_page(self):
        page = (DEPLOY / "README.md").read_text()
        for file in DEPLOY.rglob("*"):
            if file.is_file() and file.name != "README.md":
                self.assertIn(f"`{file.relative_to(DEPLOY)}`", page)

    def test_variables_are_those_that_weft_reads(self):
        page = (ROOT / "docs/launch.md").read_text()
        for file in DEPLOY.rglob("*"):
            for name in re.findall(r"\b(?:WEFT|MASTER|PET|JOB|GLOO)_[A-Z_]+\b", file.read_text() if file.is_file() else ""):
                self.assertIn(name, page, file)

    def test_the_bill_of_materials_names_packages_and_what_they_need(self):
        if not shutil.which("dpkg-deb"):
            self.skipTest("no dpkg-deb")
        with tempfile.TemporaryDirectory() as folder:
            control = pathlib.Path(folder) / "made/DEBIAN/control"
            control.parent.mkdir(parents=True)
            control.write_text("Package: made\nVersion: 1.2-3\nArchitecture: all\nMaintainer: m <m@example.org>\n"
                               "Depends: libc6 (>= 2.3), bash | dash\nDescription: of a test\n")
            deb = pathlib.Path(folder) / "made.deb"
            subprocess.run(["dpkg-deb", "--build", control.parent.parent, deb], check=True, capture_output=True)
            bill = pathlib.Path(folder) / "made.spdx.json"
            subprocess.run([DEPLOY / "debian/write_sbom.py", "--out", bill, deb], check=True)
            document = json.loads(bill.read_text())
            self.assertEqual([one["name"] for one in document["packages"]], ["made", "libc6", "bash"])
            self.assertEqual(document["packages"][0]["externalRefs"][0]["referenceLocator"],
                             "pkg:deb/weft/made@1.2-3?arch=all")
            self.assertEqual(document["packages"][0]["checksums"][0]["checksumValue"],
                             hashlib.sha256(deb.read_bytes()).hexdigest())
            self.assertEqual(len(document["relationships"]), 3)
            try:
                from spdx_tools.spdx.parser.parse_anything import parse_file
                from spdx_tools.spdx.validation.document_validator import validate_full_spdx_document
            except ImportError as missing:
                self.skipTest(missing)
            self.assertEqual(validate_full_spdx_document(parse_file(str(bill))), [])

    def test_kubernetes_accepts_them(self):
        try:
            import kubernetes_validate
            found = list(documents())
        except ImportError as missing:
            self.skipTest(missing)
        for name, document in found:
            if document["apiVersion"].startswith(("trainer.", "jobset.")):
                continue
            with self.subTest(name, kind=document["kind"]):
                kubernetes_validate.validate(document, VERSION, strict=True)

    def test_kubeflow_trainer_accepts_them(self):
        try:
            from kubeflow_trainer_api import models
            found = list(documents())
        except ImportError as missing:
            self.skipTest(missing)
        jobs = [document for _, document in found if document["kind"] == "TrainJob"]
        self.assertTrue(jobs)
        for job in jobs:  # the model drops what it does not know
            self.assertEqual(models.TrainerV1alpha1TrainJob.from_dict(job).to_dict(), job)
        sets = [document for _, document in found if document["kind"] == "JobSet"]
        self.assertTrue(sets)
        for one in sets:
            self.assertEqual(models.JobsetV1alpha2JobSet.from_dict(one).to_dict(), one)


if __name__ == "__main__":
    unittest.main()
