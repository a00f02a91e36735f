//! The messages of the option phase of a handshake: options of the client, and replies of the server.

use super::bytes::{Reader, text, truncated};
use super::constants::{
    InfoCode, MAX_STRING_BYTES, OPTION_MAGIC, OPTION_REPLY_MAGIC, OptionCode, ReplyCode,
};
use super::error::{ProtocolError, Result, invalid, require_magic};
use super::export::{BlockSizes, ExportEntry, ExportFacts};

/// Length in bytes of an NBD option without its data.
pub(crate) const OPTION_HEADER_BYTES: usize = 16;
/// Length in bytes of a reply to an NBD option without its data.
pub(crate) const OPTION_REPLY_HEADER_BYTES: usize = 20;

/// Appends an option of a client with its data to `out`. The data are from this crate, and far shorter than 4 GiB.
pub(crate) fn put_option(out: &mut Vec<u8>, option: OptionCode, data: &[u8]) {
    out.extend_from_slice(&OPTION_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.0.to_be_bytes());
    out.extend_from_slice(&(data.len() as u32).to_be_bytes());
    out.extend_from_slice(data);
}

/// Appends to `out` a reply of a server to `option`. The data of the reply are `parts`, one after the other.
pub(crate) fn put_reply(out: &mut Vec<u8>, option: OptionCode, reply: ReplyCode, parts: &[&[u8]]) {
    let len: usize = parts.iter().map(|part| part.len()).sum();
    out.extend_from_slice(&OPTION_REPLY_MAGIC.to_be_bytes());
    out.extend_from_slice(&option.0.to_be_bytes());
    out.extend_from_slice(&reply.0.to_be_bytes());
    out.extend_from_slice(&(len as u32).to_be_bytes());
    for part in parts {
        out.extend_from_slice(part);
    }
}

/// Appends to `out` an error reply of a server to `option`, with a message for people.
pub(crate) fn put_refusal(out: &mut Vec<u8>, option: OptionCode, code: ReplyCode, words: &str) {
    put_reply(out, option, code, &[truncated(words, MAX_STRING_BYTES).as_bytes()]);
}

/// Appends to `out` the description of an export, for the reply to `NBD_OPT_LIST`.
pub(crate) fn put_server(out: &mut Vec<u8>, entry: &ExportEntry) {
    let name = truncated(&entry.name, MAX_STRING_BYTES);
    let description = truncated(&entry.description, MAX_STRING_BYTES);
    let name_len = (name.len() as u32).to_be_bytes();
    let parts: [&[u8]; 3] = [&name_len, name.as_bytes(), description.as_bytes()];
    put_reply(out, OptionCode::LIST, ReplyCode::SERVER, &parts);
}

/// Appends to `out` the facts about an export that a client requests. Size and flags are always among them (section
/// "Option reply types", `NBD_REP_INFO`).
pub(crate) fn put_infos(
    out: &mut Vec<u8>,
    option: OptionCode,
    request: &InfoRequest<'_>,
    facts: &ExportFacts,
    structured: bool,
) {
    let mut put = |code: InfoCode, parts: [&[u8]; 3]| {
        let [first, second, third] = parts;
        put_reply(out, option, ReplyCode::INFO, &[&code.0.to_be_bytes(), first, second, third]);
    };
    let (size, flags) = (facts.size_bytes.to_be_bytes(), facts.wire_flags(structured));
    put(InfoCode::EXPORT, [&size, &flags.0.to_be_bytes(), &[]]);
    if request.asks(InfoCode::NAME) {
        put(InfoCode::NAME, [truncated(&facts.name, MAX_STRING_BYTES).as_bytes(), &[], &[]]);
    }
    if request.asks(InfoCode::DESCRIPTION) {
        let words = truncated(&facts.description, MAX_STRING_BYTES);
        put(InfoCode::DESCRIPTION, [words.as_bytes(), &[], &[]]);
    }
    if request.asks(InfoCode::BLOCK_SIZE) {
        let BlockSizes { min, preferred, max } = facts.blocks;
        let [min, preferred, max] = [min, preferred, max].map(u32::to_be_bytes);
        put(InfoCode::BLOCK_SIZE, [&min, &preferred, &max]);
    }
}

/// The data of the options `NBD_OPT_INFO` and `NBD_OPT_GO`.
pub(crate) struct InfoRequest<'a> {
    pub(crate) name: &'a str,
    /// Codes of the requested facts, two bytes each.
    wanted: &'a [u8],
}

impl<'a> InfoRequest<'a> {
    /// Parses the data of the option. Returns `None` if a length is inconsistent, or the name is not a valid string.
    pub(crate) fn parse(data: &'a [u8]) -> Option<Self> {
        let mut reader = Reader::new(data);
        let name = take_string(&mut reader)?;
        let count = reader.u16()?;
        let wanted = reader.bytes(usize::from(count) * 2)?;
        reader.is_empty().then_some(Self { name, wanted })
    }

    fn asks(&self, code: InfoCode) -> bool {
        self.wanted.chunks_exact(2).any(|two| two == code.0.to_be_bytes())
    }

    /// Encodes a request for the facts `wanted` of the export `name`.
    pub(crate) fn data(name: &str, wanted: &[InfoCode]) -> Vec<u8> {
        let mut data = string(name);
        data.extend_from_slice(&(wanted.len() as u16).to_be_bytes());
        data.extend(wanted.iter().flat_map(|code| code.0.to_be_bytes()));
        data
    }
}

/// The data of the options `NBD_OPT_LIST_META_CONTEXT` and `NBD_OPT_SET_META_CONTEXT`.
pub(crate) struct MetaRequest<'a> {
    pub(crate) name: &'a str,
    pub(crate) count: u32,
    queries: Reader<'a>,
}

impl<'a> MetaRequest<'a> {
    /// Parses the data of the option. Returns `None` if a length is inconsistent, a string is invalid, or a query has
    /// no namespace.
    ///
    /// The queries are only checked, and [`MetaRequest::queries`] parses them again. So no allocation depends on the
    /// number of queries in the message.
    pub(crate) fn parse(data: &'a [u8]) -> Option<Self> {
        let mut reader = Reader::new(data);
        let name = take_string(&mut reader)?;
        let count = reader.u32()?;
        let queries = reader;
        for _ in 0..count {
            let query = take_string(&mut reader)?;
            let colon = query.find(':')?;
            if colon == 0 {
                return None;
            }
        }
        reader.is_empty().then_some(Self { name, count, queries })
    }

    /// Iterates over the queries for metadata contexts, in order.
    pub(crate) fn queries(&self) -> impl Iterator<Item = &'a str> + use<'a> {
        let mut reader = self.queries;
        std::iter::from_fn(move || take_string(&mut reader))
    }

    /// Encodes the data of a request for the contexts `queries` of the export `name`.
    pub(crate) fn data(name: &str, queries: &[String]) -> Vec<u8> {
        let mut data = string(name);
        data.extend_from_slice(&(queries.len() as u32).to_be_bytes());
        data.extend(queries.iter().flat_map(|query| string(query)));
        data
    }
}

/// Reads a 32-bit length, and then a string of that length.
fn take_string<'a>(reader: &mut Reader<'a>) -> Option<&'a str> {
    let len = reader.u32()?;
    text(reader.bytes(usize::try_from(len).ok()?)?)
}

fn string(text: &str) -> Vec<u8> {
    let mut data = (text.len() as u32).to_be_bytes().to_vec();
    data.extend_from_slice(text.as_bytes());
    data
}

/// The header of a reply to an option.
pub(crate) struct ReplyHeader {
    pub(crate) option: OptionCode,
    pub(crate) reply: ReplyCode,
    pub(crate) len: usize,
}

impl ReplyHeader {
    /// Parses the header of an option reply. Returns `None` if more bytes are needed.
    pub(crate) fn parse(input: &[u8]) -> Result<Option<Self>> {
        let mut reader = Reader::new(input);
        let Some(found) = reader.u64() else { return Ok(None) };
        require_magic("option reply", found, OPTION_REPLY_MAGIC)?;
        let fields = (reader.u32(), reader.u32(), reader.u32());
        let (Some(option), Some(reply), Some(len)) = fields else { return Ok(None) };
        let (option, reply) = (OptionCode(option), ReplyCode(reply));
        Ok(Some(Self { option, reply, len: len as usize }))
    }
}

/// Copies the fact in the data of one `NBD_REP_INFO` into `facts`. Ignores an unknown fact.
pub(crate) fn take_info(facts: &mut ExportFacts, data: &[u8]) -> Result<InfoCode> {
    let mut reader = Reader::new(data);
    let rule = "must be the length of its information type";
    let wrong = invalid("length of an NBD_REP_INFO", data.len() as u64, rule);
    let Some(code) = reader.u16().map(InfoCode) else { return Err(wrong) };
    let info = reader.rest();
    match code {
        InfoCode::EXPORT => {
            let (Some(size), Some(flags), true) = (reader.u64(), reader.u16(), reader.is_empty())
            else {
                return Err(wrong);
            };
            facts.size_bytes = size;
            facts.flags.0 = flags;
        }
        InfoCode::BLOCK_SIZE => {
            let fields = (reader.u32(), reader.u32(), reader.u32(), reader.is_empty());
            let (Some(min), Some(preferred), Some(max), true) = fields else { return Err(wrong) };
            let what = "minimum block size, or one of the sizes with it";
            let rule = "must be powers of two, the minimum up to 65536, the others its multiples";
            let blocks = BlockSizes::new(min, preferred, max);
            facts.blocks = blocks.ok_or(invalid(what, min, rule))?;
        }
        InfoCode::NAME => {
            let name = text(info).ok_or(ProtocolError::BadText("name of the export"))?;
            facts.name = name.to_owned();
        }
        InfoCode::DESCRIPTION => {
            let words = text(info).ok_or(ProtocolError::BadText("description"))?;
            facts.description = words.to_owned();
        }
        _ => {}
    }
    Ok(code)
}

/// Parses the list entry in the data of one `NBD_REP_SERVER`.
pub(crate) fn parse_server(data: &[u8]) -> Result<ExportEntry> {
    let mut reader = Reader::new(data);
    let name = take_string(&mut reader);
    match (name, text(reader.rest())) {
        (Some(name), Some(description)) => {
            Ok(ExportEntry { name: name.to_owned(), description: description.to_owned() })
        }
        _ => Err(ProtocolError::BadText("entry of the export list")),
    }
}
