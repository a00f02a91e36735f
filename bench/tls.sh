#!/usr/bin/env bash
# TLS reads beside what openssl moves with the same cipher, over unix sockets, in turns.
#   bench/tls.sh [ROUNDS]        CAIRN names the binary; target/release/cairn if not set
set -euo pipefail
rounds=${1:-5}
cairn=$(realpath "${CAIRN:-target/release/cairn}")
cipher=TLS_AES_256_GCM_SHA384 # what both of ours agree on first
bytes=2000000000
dir=$(mktemp -d)
pids=()
trap 'kill "${pids[@]}" 2>/dev/null || true; rm -rf "$dir"' EXIT
cd "$dir"

ec="-newkey ec -pkeyopt ec_paramgen_curve:prime256v1 -nodes -days 2"
openssl req -x509 $ec -subj /CN=authority -keyout ca-key.pem -out ca-cert.pem 2>/dev/null
openssl req -x509 $ec -subj /CN=localhost -addext subjectAltName=DNS:localhost -addext basicConstraints=CA:FALSE \
  -CA ca-cert.pem -CAkey ca-key.pem -keyout server-key.pem -out server-cert.pem 2>/dev/null
chmod 600 ./*-key.pem
cat >t.toml <<'SPEC'
[nbd]
listen = ["unix:plain.sock", "tls+unix:tls.sock"]
tls = { cert = "server-cert.pem", key = "server-key.pem" }
[disk]
d = { memory = "256MiB" }
[export]
vol = { on = "d" }
SPEC
XDG_RUNTIME_DIR="$dir" "$cairn" serve t.toml >serve.log 2>&1 &
pids+=($!)
until grep -q fio serve.log; do sleep 0.1; done
"$cairn" bench --pattern write --block 1MiB --rounds 1 --yes "nbd+unix:///vol?socket=plain.sock" >/dev/null

# MB/s that one openssl sends and another receives: from the first byte to the last.
peer() {
  rm -f peer.sock
  tail -f /dev/null | openssl s_server -unix peer.sock -cert server-cert.pem -key server-key.pem -quiet \
    -naccept 1 -ciphersuites $cipher 2>/dev/null | head -c $bytes | wc -c >got &
  local reader=$!
  until [ -S peer.sock ]; do sleep 0.1; done
  local from=$EPOCHREALTIME
  head -c $((bytes + (1 << 20))) /dev/zero | openssl s_client -unix peer.sock -quiet -ciphersuites $cipher \
    >/dev/null 2>&1 &
  local sender=$!
  wait $reader || true
  local to=$EPOCHREALTIME
  kill $sender 2>/dev/null || true
  [ "$(cat got)" = $bytes ] || { echo "error: openssl moved $(cat got) of $bytes bytes" >&2; exit 1; }
  awk -v f="$from" -v t="$to" -v b=$bytes 'BEGIN { printf "%.0f", b / (t - f) / 1e6 }'
}

ours() {
  "$cairn" -o json bench --pattern read --block 256KiB --depth 8 --rounds 1 --time 2s "$1" |
    sed -n 's/.*"bytes_per_second": *\([0-9.]*\).*/\1/p' | awk '{ printf "%.0f", $1 / 1e6 }'
}

echo "round  openssl  TLS  plain  TLS/openssl   (MB/s, $cipher, 256 KiB reads, depth 8)"
for round in $(seq "$rounds"); do
  peer=$(peer)
  tls=$(ours "nbds+unix:///vol?socket=tls.sock&tls-certificates=.")
  plain=$(ours "nbd+unix:///vol?socket=plain.sock")
  echo "$round  $peer  $tls  $plain  $(awk -v a="$tls" -v b="$peer" 'BEGIN { printf "%.2f", a / b }')"
done
