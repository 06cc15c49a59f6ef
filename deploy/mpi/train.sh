#!/bin/bash
# Four ranks on two hosts, under the mpirun of OpenMPI or the mpiexec of MPICH:
#
#   deploy/mpi/train.sh host0 host1
#
# The hosts need the same secret (docs/security.md). After a stop by SIGTERM, start it again.
set -eu
first=$1
hosts=$(IFS=,; echo "$*")
program=(./train --checkpoint saved)
if [[ -e saved ]]; then program+=(--resume); fi

if mpirun --version 2> /dev/null | grep -q 'Open MPI'; then
  exec mpirun --host "${hosts//,/:2,}:2" -n $((2 * $#)) -x MASTER_ADDR="$first" "${program[@]}"
fi
exec mpiexec -hosts "$hosts" -ppn 2 -n $((2 * $#)) -genv MASTER_ADDR "$first" -genv MASTER_PORT 29500 "${program[@]}"
