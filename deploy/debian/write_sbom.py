#!/usr/bin/env python3
"""Writes a bill of materials of Debian packages, as SPDX 2.3 in JSON:

  write_sbom.py [--torch FOLDER] [--out FILE] PACKAGE.deb ...

It lists each package with its SHA-256, and the packages on which it depends, in the versions that are installed here.
With --torch it also lists that LibTorch, on which the -dev package depends. Licences are not stated. Identifiers are
package URLs (https://github.com/package-url/purl-spec).
"""
import argparse
import datetime
import hashlib
import json
import pathlib
import re
import subprocess
import sys

# https://spdx.github.io/spdx-spec/v2.3/package-information
UNKNOWN = "NOASSERTION"


def output_of(*command):
    return subprocess.run(command, check=True, capture_output=True, text=True).stdout.strip()


def identifier(*parts):
    return "SPDXRef-" + re.sub(r"[^A-Za-z0-9.-]", "-", "-".join(parts))


def package(name, version, url, checksum=None):
    entry = {"name": name, "SPDXID": identifier("Package", name), "versionInfo": version, "downloadLocation": UNKNOWN,
             "filesAnalyzed": False, "licenseConcluded": UNKNOWN, "licenseDeclared": UNKNOWN,
             "copyrightText": UNKNOWN,
             "externalRefs": [{"referenceCategory": "PACKAGE-MANAGER", "referenceType": "purl",
                               "referenceLocator": url}]}
    if checksum:
        entry["checksums"] = [{"algorithm": "SHA256", "checksumValue": checksum}]
    return entry


def debian_url(name, version, architecture, vendor="debian"):
    return f"pkg:deb/{vendor}/{name}@{version.replace('+', '%2B').replace(':', '%3A')}?arch={architecture}"


def made(path):
    """The entry of a package that was made here, and the names of what it depends on."""
    name, version, architecture, depends = (output_of("dpkg-deb", "--field", str(path), field) for field in
                                            ("Package", "Version", "Architecture", "Depends"))
    entry = package(name, version, debian_url(name, version, architecture, "weft"),
                    hashlib.sha256(path.read_bytes()).hexdigest())
    # "libc6 (>= 2.34), a | b": of alternatives the first counts.
    names = [re.split(r"[\s(:|]", one.strip())[0] for one in depends.split(",") if one.strip()]
    return entry, names


def installed(name):
    found = subprocess.run(
        ["dpkg-query", "--show", "--showformat=${db:Status-Abbrev}\t${Version}\t${Architecture}\n", name],
        capture_output=True, text=True).stdout
    if not found.startswith("ii"):
        raise SystemExit(f"write_sbom.py: '{name}' is not installed, so its version is unknown")
    _, version, architecture = found.splitlines()[0].split("\t")
    return package(name, version, debian_url(name, version, architecture))


def torch_entry(folder):
    text = (folder / "version.py").read_text()
    version = re.search(r"__version__ = '([^']+)'", text)[1]
    return package("torch", version, f"pkg:pypi/torch@{version.split('+')[0]}")


def bill(debs, torch):
    entries, relations = {}, []
    for path in debs:
        entry, depends = made(path)
        entries[entry["name"]] = entry
        relations.append(("SPDXRef-DOCUMENT", "DESCRIBES", entry["SPDXID"]))
        relations += [(entry["SPDXID"], "DEPENDS_ON", identifier("Package", name)) for name in depends]
        for name in depends:
            entries.setdefault(name, None)
        if torch and entry["name"].endswith("-dev"):
            entries["torch"] = torch_entry(torch)
            relations.append((entry["SPDXID"], "DEPENDS_ON", entries["torch"]["SPDXID"]))
    entries = {name: entry or installed(name) for name, entry in entries.items()}
    content = "".join(entry["checksums"][0]["checksumValue"] for entry in entries.values() if "checksums" in entry)
    first = entries[next(iter(entries))]
    return {
        "spdxVersion": "SPDX-2.3",
        "dataLicense": "CC0-1.0",  # of this document; SPDX wants it
        "SPDXID": "SPDXRef-DOCUMENT",
        "name": f"weft-{first['versionInfo']}",
        "documentNamespace": f"https://weft.invalid/spdx/{hashlib.sha256(content.encode()).hexdigest()}",
        "creationInfo": {"created": datetime.datetime.now(datetime.timezone.utc).strftime("%Y-%m-%dT%H:%M:%SZ"),
                         "creators": ["Tool: write_sbom.py"]},
        "packages": list(entries.values()),
        "relationships": [{"spdxElementId": a, "relationshipType": kind, "relatedSpdxElement": b}
                          for a, kind, b in relations],
    }


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("debs", nargs="+", type=pathlib.Path, metavar="PACKAGE.deb")
    parser.add_argument("--torch", type=pathlib.Path, help="folder of the torch package, with version.py")
    parser.add_argument("--out", type=pathlib.Path, help="file to write; default: standard output")
    options = parser.parse_args()
    text = json.dumps(bill(options.debs, options.torch), indent=2) + "\n"
    if options.out:
        options.out.write_text(text)
    else:
        sys.stdout.write(text)


if __name__ == "__main__":
    main()
