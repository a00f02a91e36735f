//! Checks that the limits in the manual page `docs/exports/nbd.md` are those of the code.

use std::path::Path;

use export::nbd::Limits;

#[test]
fn nbd_manual_lists_limits_of_server() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../docs/exports/nbd.md");
    let text = std::fs::read_to_string(path).unwrap();
    let says = |what: &str, limit: String| {
        let row = format!("| {what} | {limit} |");
        assert!(text.contains(&row), "docs/exports/nbd.md has no {row}");
    };
    let (ours, codec) = (Limits::default(), wire::nbd::Limits::default());
    let mib = |bytes: usize| format!("{} MiB", bytes >> 20);
    says("connections of one server", ours.connections.to_string());
    says("handshake", format!("{} s", ours.handshake.as_secs()));
    says("one request, from its first byte to its last", format!("{} s", ours.request.as_secs()));
    says("requests begun and not answered, per connection", ours.requests.to_string());
    says("bytes held for a connection's requests and answers", mib(ours.held_bytes));
    says("payload of one request", mib(wire::nbd::MAX_PAYLOAD_BYTES as usize));
    says("options in a handshake", codec.options.to_string());
    says("option data in a handshake", format!("{} KiB", codec.option_bytes >> 10));
    let busy = wire::stream::INBOX_BYTES + 2 * wire::stream::HEADS_BYTES;
    let (idle, busy) = (wire::stream::INBOX_IDLE_BYTES >> 10, busy >> 10);
    let words = format!("{idle} KiB of buffers while it is idle, and up to {busy} KiB while it is");
    assert!(text.contains(&words), "{words}");
    let pool = runtime::Config::default().pool_limit_bytes;
    assert!(text.contains(&format!("of {} for everything", mib(pool))));
}
