//! The forms of fields on disk, and the macro that declares rows.

use meta::Uuid;
use zerocopy::big_endian::U64 as BigU64;
use zerocopy::little_endian::{U16, U32, U64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::Address;

/// Maximum length in bytes of a text in a row.
pub(crate) const TEXT_BYTES: usize = 64;

/// The form of a field on disk.
pub(super) trait Stored: Sized {
    /// The value of the field.
    type Value;

    fn store(value: &Self::Value) -> Self;

    fn load(&self) -> Result<Self::Value, String>;
}

/// Declares forms whose values convert without an error.
macro_rules! plain {
    ($($raw:ty, $value:ty: $store:expr, $load:expr;)*) => {
        $(impl Stored for $raw {
            type Value = $value;

            fn store(value: &$value) -> Self {
                let store: fn($value) -> Self = $store;
                store(*value)
            }

            fn load(&self) -> Result<$value, String> {
                let load: fn(&Self) -> $value = $load;
                Ok(load(self))
            }
        })*
    };
}

/// Bytes without a meaning for the codec.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(transparent)]
pub(super) struct Opaque<const N: usize>([u8; N]);

impl<const N: usize> Stored for Opaque<N> {
    type Value = [u8; N];

    fn store(value: &[u8; N]) -> Self {
        Self(*value)
    }

    fn load(&self) -> Result<[u8; N], String> {
        Ok(self.0)
    }
}

/// A UUID.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(super) struct StoredUuid([u8; 16]);

/// A physical address.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(super) struct StoredAddress(U64);

plain! {
    u8, u8: |value| value, |raw| *raw;
    U16, u16: U16::new, |raw| raw.get();
    U32, u32: U32::new, |raw| raw.get();
    U64, u64: U64::new, |raw| raw.get();
    BigU64, u64: BigU64::new, |raw| raw.get();
    StoredUuid, Uuid: |value| Self(value.0), |raw| Uuid(raw.0);
    StoredAddress, Address: |value| Self(value.bits().into()), |raw| Address::from_bits(raw.0.get());
}

/// Declares forms of numbers that zeros fill up.
macro_rules! padded {
    ($($(#[$words:meta])* $name:ident: $raw:ty, $value:ty, $zeros:literal;)*) => {
        $(
            $(#[$words])*
            #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
            #[repr(C)]
            pub(super) struct $name($raw, [u8; $zeros]);

            impl Stored for $name {
                type Value = $value;

                fn store(value: &$value) -> Self {
                    Self(<$raw as Stored>::store(value), [0; $zeros])
                }

                fn load(&self) -> Result<$value, String> {
                    check_zeros(&self.1)?;
                    self.0.load()
                }
            }
        )*
    };
}

padded! {
    /// A number of 1 byte in 2.
    ByteIn2: u8, u8, 1;
    /// A number of 1 byte in 8.
    ByteIn8: u8, u8, 7;
    /// A number of 4 bytes in 8.
    HalfIn8: U32, u32, 4;
}

/// A text, filled up with zeros.
#[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned, Clone, Copy)]
#[repr(C)]
pub(super) struct Text([u8; TEXT_BYTES]);

impl Stored for Text {
    type Value = String;

    fn store(value: &String) -> Self {
        let mut field = [0; TEXT_BYTES];
        field[..value.len()].copy_from_slice(value.as_bytes());
        Self(field)
    }

    fn load(&self) -> Result<String, String> {
        let end = self.0.iter().rposition(|byte| *byte != 0).map_or(0, |last| last + 1);
        match std::str::from_utf8(&self.0[..end]) {
            Ok(text) if !text.contains('\0') => Ok(text.to_owned()),
            _ => Err("a text is not UTF-8 filled up with zeros".to_owned()),
        }
    }
}

/// Checks that fields without a meaning are zero. The error describes them.
pub(super) fn check_zeros(bytes: &[u8]) -> Result<(), String> {
    match bytes.iter().all(|byte| *byte == 0) {
        true => Ok(()),
        false => Err("unknown fields are not zero".to_owned()),
    }
}

/// Declares a row: the fields of its key and its value in their order, each with its value and its form on disk, and the
/// number of zeros behind them. The row has a function `check` that judges the limits of its values.
macro_rules! row {
    (
        $(#[$words:meta])*
        $name:ident of $table:ident, zeros $zeros:literal;
        key { $($(#[$key_words:meta])* $key:ident: $key_value:ty as $key_raw:ty,)* }
        value { $($(#[$field_words:meta])* $field:ident: $value:ty as $raw:ty,)* }
    ) => {
        $(#[$words])*
        #[derive(Clone, PartialEq, Eq, Debug)]
        pub struct $name {
            $($(#[$key_words])* pub $key: $key_value,)*
            $($(#[$field_words])* pub $field: $value,)*
        }

        const _: () = {
            use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

            #[derive(FromBytes, IntoBytes, Immutable, KnownLayout, Unaligned)]
            #[repr(C)]
            struct Raw {
                $($key: $key_raw,)*
                $($field: $raw,)*
                zeros: [u8; $zeros],
            }

            impl $name {
                /// Length in bytes of the key.
                pub(super) const KEY_BYTES: usize = 0 $(+ size_of::<$key_raw>())*;

                /// Length in bytes of the row.
                pub(super) const ROW_BYTES: usize = size_of::<Raw>();
            }

            impl $crate::rows::Row for $name {
                const TABLE: $crate::rows::Table = $crate::rows::Table::$table;

                fn encode(&self, to: &mut Vec<u8>) {
                    self.check().unwrap_or_else(|why| panic!("{self:?}: {why}"));
                    let raw = Raw {
                        $($key: $crate::rows::stored::Stored::store(&self.$key.clone().into()),)*
                        $($field: $crate::rows::stored::Stored::store(&self.$field.clone().into()),)*
                        zeros: [0; $zeros],
                    };
                    to.extend_from_slice(raw.as_bytes());
                }

                fn decode(bytes: &[u8]) -> Result<Self, String> {
                    let raw = Raw::ref_from_bytes(bytes).map_err(|_| {
                        format!("{} bytes are no row of {}", bytes.len(), size_of::<Raw>())
                    })?;
                    $crate::rows::stored::check_zeros(&raw.zeros)?;
                    let row = Self {
                        $($key: $crate::rows::stored::Stored::load(&raw.$key)?.into(),)*
                        $($field: $crate::rows::stored::Stored::load(&raw.$field)?.into(),)*
                    };
                    row.check()?;
                    Ok(row)
                }
            }
        };
    };
}

pub(super) use row;
