#!/usr/bin/env bash
# Installs the peers of the comparison and builds the adapter for PyTorch.
#
#   benches/peers/install.sh DIR          makes a virtual environment in DIR/venv (about 6 GB)
#   benches/peers/install.sh DIR VENV     uses one that has requirements.txt installed
#
# Needs python3 with its shared library, venv, and a C++20 compiler. Writes DIR/peers.json, which says where all is.
set -euo pipefail

here=$(cd "$(dirname "$0")" && pwd)
[ $# -ge 1 ] || { sed -n '2,7s/^# \{0,1\}//p' "$0" >&2; exit 2; }
mkdir -p "$1"
dir=$(cd "$1" && pwd)
venv=${2:-$dir/venv}

if [ $# -lt 2 ]; then
  [ -x "$venv/bin/python" ] || python3 -m venv "$venv"
  "$venv/bin/python" -m pip install --quiet --requirement "$here/requirements.txt"
fi
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_paths()["purelib"])')

torch=$site/torch
"${CXX:-c++}" -O2 -std=c++20 -fPIC -shared -I"$here" \
  -isystem "$torch/include" -isystem "$torch/include/torch/csrc/api/include" \
  "$here/torch_peer.cpp" -o "$dir/libep_peer_torch.so" \
  -L"$torch/lib" -ltorch_cpu -lc10 -Wl,-rpath,"$torch/lib"

"$venv/bin/python" - "$here" "$dir" <<'PYTHON'
import glob, importlib.metadata, json, os, sys, sysconfig

here, out = sys.argv[1:]
site = sysconfig.get_paths()["purelib"]


def only(pattern):
    found = sorted(glob.glob(pattern))
    if not found:
        sys.exit(f"nothing matches {pattern}")
    return found[-1]


def libpython():
    name = sysconfig.get_config_var("INSTSONAME")
    for folder in (sysconfig.get_config_var("LIBDIR"), sysconfig.get_config_var("LIBPL"), sys.base_prefix + "/lib"):
        path = os.path.join(folder or "", name or "")
        if name and ".so" in name and os.path.exists(path):
            return path
    return None  # a Python without its shared library: numpy is left out


peers = {
    "torch": os.path.join(out, "libep_peer_torch.so"),
    "onnxruntime": only(site + "/onnxruntime/capi/libonnxruntime.so*"),
    "mkl": only(sys.prefix + "/lib/libmkl_rt.so*"),
    "python": libpython(),
    "python_home": sys.base_prefix,
    "python_path": [here, site],
    "versions": {name: importlib.metadata.version(name) for name in ("torch", "onnxruntime", "numpy", "mkl")},
}
with open(os.path.join(out, "peers.json"), "w") as file:
    json.dump(peers, file, indent=2)
print(json.dumps(peers, indent=2))
PYTHON
