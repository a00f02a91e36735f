//! What NBD options carry, byte by byte: by the protocol's document, and by no codec that a test judges.

/// The data of `NBD_OPT_INFO` and `NBD_OPT_GO`: an export, and what is asked of it.
pub fn info_data(name: &str, wanted: &[u16]) -> Vec<u8> {
    let mut data = text(name);
    data.extend((wanted.len() as u16).to_be_bytes());
    data.extend(wanted.iter().flat_map(|code| code.to_be_bytes()));
    data
}

/// The data of `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`: an export, and the contexts that
/// are meant.
pub fn meta_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = text(name);
    data.extend((queries.len() as u32).to_be_bytes());
    data.extend(queries.iter().flat_map(|query| text(query)));
    data
}

/// A text behind its length.
fn text(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}
