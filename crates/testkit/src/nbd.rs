//! Encodes the data of NBD options for tests, from the specification and without the codec under test.

/// Encodes the data of `NBD_OPT_INFO` and `NBD_OPT_GO`: the name of an export, and the numbers of the requested facts.
pub fn info_data(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut data = text(name);
    data.extend((wanted.len() as u16).to_be_bytes());
    data.extend(wanted.iter().flat_map(|code| code.to_be_bytes()));
    data
}

/// Encodes the data of `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`: an export, and the queries for
/// metadata contexts.
pub fn meta_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = text(name);
    data.extend((queries.len() as u32).to_be_bytes());
    data.extend(queries.iter().flat_map(|query| text(query)));
    data
}

/// Encodes a text as NBD options do: its length in bytes, and then its bytes.
fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}
