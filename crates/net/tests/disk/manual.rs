//! Checks that the manual of the NBD disk lists exactly its options.

use net::nbd::KIND;

#[test]
fn nbd_disk_manual_lists_exactly_the_options() {
    let (_, options) = KIND.manual.split_once("\n## Options\n").unwrap();
    let table = options.split("\n\n| URI").next().unwrap();
    let rows = table.lines().filter_map(|line| line.strip_prefix("| `"));
    let documented: Vec<_> = rows.filter_map(|row| row.split('`').next()).collect();
    let known: Vec<_> = KIND.options.iter().map(|option| option.name).collect();
    assert_eq!(documented, known);
}
