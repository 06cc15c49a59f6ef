#!/usr/bin/env python3
"""Checks the files in deploy/: scripts by their shell, YAML by the schemas of Kubernetes and Kubeflow Trainer.

The schemas come from the packages kubernetes-validate and kubeflow-trainer-api. Where they are not installed, only
those tests are skipped.
"""
import pathlib
import re
import subprocess
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
        scripts = sorted(DEPLOY.glob("slurm/*.sbatch"))
        self.assertTrue(scripts)
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

    def test_kubernetes_accepts_them(self):
        try:
            import kubernetes_validate
            found = list(documents())
        except ImportError as missing:
            self.skipTest(missing)
        for name, document in found:
            if document["apiVersion"].startswith("trainer."):
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


if __name__ == "__main__":
    unittest.main()
