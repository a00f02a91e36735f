//! Certificates, keys and authorities from PEM, and the names in them.

use std::sync::Arc;
use std::time::Duration;

use block::{Error, Result, Secret, error};
use rustls::crypto::CryptoProvider;
use rustls::crypto::aws_lc_rs::sign::any_supported_type;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, CertificateRevocationListDer, PrivateKeyDer};
use rustls::sign::CertifiedKey;
use rustls::{CipherSuite, InconsistentKeys, RootCertStore};
use x509_parser::prelude::{FromDer, GeneralName, ParsedExtension, X509Certificate};
use x509_parser::revocation_list::CertificateRevocationList;
use zeroize::Zeroize;

/// The content of a PEM file with certificates or revocation lists, and the path of the file.
#[derive(Clone)]
pub struct Pem {
    /// Path of the PEM file, for messages.
    pub path: String,
    /// Content of the PEM file.
    pub bytes: Vec<u8>,
}

/// The content of the PEM file of a private key, in locked memory, and the path of the file.
pub struct PemKey {
    /// Path of the PEM file, for messages.
    pub path: String,
    /// Content of the PEM file, in locked memory.
    pub bytes: Secret,
}

/// The certificate of this side with its chain up to the authority, and its private key.
#[derive(Clone)]
pub struct Identity {
    pub(crate) certified: Arc<CertifiedKey>,
    path: String,
}

/// Certificates of the authorities that this side trusts to sign a peer's certificate.
#[derive(Clone)]
pub struct Authorities(pub(crate) Arc<RootCertStore>);

/// Lists of certificates that their authorities have revoked (CRLs).
#[derive(Clone, Default)]
pub struct Revoked(pub(crate) Vec<CertificateRevocationListDer<'static>>);

/// Returns the ciphers of TLS, the preferred ones first. In TLS 1.2 ChaCha20-Poly1305 is first: the keys of AES-GCM
/// protect a limited number of bytes, and TLS 1.2 cannot renew them.
pub(crate) fn provider() -> Arc<CryptoProvider> {
    let mut provider = rustls::crypto::aws_lc_rs::default_provider();
    let is_limited = |suite: CipherSuite| {
        suite != CipherSuite::TLS_ECDHE_ECDSA_WITH_CHACHA20_POLY1305_SHA256
            && suite != CipherSuite::TLS_ECDHE_RSA_WITH_CHACHA20_POLY1305_SHA256
    };
    provider
        .cipher_suites
        .sort_by_key(|suite| suite.tls13().is_none().then(|| is_limited(suite.suite())));
    Arc::new(provider)
}

fn wrong(path: &str, why: impl std::fmt::Display) -> Error {
    error!(Invalid, "{path}: {why}")
}

fn certificates(pem: &Pem) -> Result<Vec<CertificateDer<'static>>> {
    let all: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(&pem.bytes).collect();
    let all = all.map_err(|error| wrong(&pem.path, format!("no valid PEM: {error}")))?;
    if all.is_empty() {
        return Err(wrong(&pem.path, "the file has no certificate (-----BEGIN CERTIFICATE-----)"));
    }
    Ok(all)
}

impl Identity {
    /// Reads a certificate and the chain after it from `cert`, and the private key from `key`.
    ///
    /// # Errors
    /// `Invalid`, with the path, if a file has no such content, or if the key belongs to another certificate.
    pub fn new(cert: &Pem, key: &PemKey) -> Result<Self> {
        let chain = certificates(cert)?;
        parse(&chain[0]).map_err(|why| wrong(&cert.path, why))?;
        let key_der = PrivateKeyDer::from_pem_slice(key.bytes.bytes()).map_err(|_| {
            wrong(&key.path, "the file has no unencrypted private key (BEGIN PRIVATE KEY)")
        })?;
        let signing = any_supported_type(&key_der);
        let mut key_der = key_der;
        key_der.zeroize();
        let certified = signing.map(|signing| CertifiedKey::new(chain, signing));
        let checked = certified.and_then(|certified| match certified.keys_match() {
            Ok(()) | Err(rustls::Error::InconsistentKeys(InconsistentKeys::Unknown)) => {
                Ok(certified)
            }
            Err(error) => Err(error),
        });
        let certified = checked.map_err(|error| match error {
            rustls::Error::InconsistentKeys(_) => wrong(
                &key.path,
                format!("the key does not belong to the certificate in {}", cert.path),
            ),
            error => wrong(&key.path, format!("key or certificate cannot be used: {error}")),
        })?;
        Ok(Self { certified: Arc::new(certified), path: cert.path.clone() })
    }

    /// Checks that the certificate is valid at the time `wall` since 1970.
    ///
    /// # Errors
    /// `Denied` if the certificate has expired, or is not valid yet.
    pub fn check_time(&self, wall: Duration) -> Result<()> {
        let cert = parse(&self.certified.cert[0]).expect("the certificate was parsed before");
        let (now, validity) = (wall.as_secs().cast_signed(), cert.validity());
        let denied = |why: String| Err(error!(Denied, "{}: {why}", self.path));
        if now > validity.not_after.timestamp() {
            return denied(format!(
                "the certificate expired on {}; create a new certificate",
                validity.not_after
            ));
        }
        if now < validity.not_before.timestamp() {
            return denied(format!("the certificate is not valid before {}", validity.not_before));
        }
        Ok(())
    }
}

impl Authorities {
    /// Reads the certificates of all authorities in the PEM file.
    ///
    /// # Errors
    /// `Invalid`, with the path, if the file has no certificate, or a certificate that is not that of an authority.
    pub fn new(pem: &Pem) -> Result<Self> {
        let mut store = RootCertStore::empty();
        for cert in certificates(pem)? {
            store.add(cert).map_err(|error| wrong(&pem.path, error))?;
        }
        Ok(Self(Arc::new(store)))
    }
}

impl Revoked {
    /// Reads all lists of revoked certificates in the PEM file.
    ///
    /// # Errors
    /// `Invalid`, with the path, if the file has no list, or a list that cannot be read.
    pub fn new(pem: &Pem) -> Result<Self> {
        let all: Result<Vec<_>, _> =
            CertificateRevocationListDer::pem_slice_iter(&pem.bytes).collect();
        let all = all.map_err(|error| wrong(&pem.path, format!("no valid PEM: {error}")))?;
        if all.is_empty() {
            return Err(wrong(&pem.path, "the file has no revocation list (BEGIN X509 CRL)"));
        }
        for list in &all {
            CertificateRevocationList::from_der(list).map_err(|error| {
                wrong(&pem.path, format!("the file has an invalid revocation list: {error}"))
            })?;
        }
        Ok(Self(all))
    }
}

fn parse<'a>(cert: &'a CertificateDer<'_>) -> Result<X509Certificate<'a>, String> {
    X509Certificate::from_der(cert)
        .map(|(_, cert)| cert)
        .map_err(|error| format!("the certificate is no X.509: {error}"))
}

/// Returns the names in a certificate: its common name, and its alternative DNS names, mail addresses and URIs.
pub(crate) fn names(cert: &CertificateDer<'_>) -> Vec<String> {
    let Ok(cert) = parse(cert) else { return Vec::new() };
    let common = cert.subject().iter_common_name().filter_map(|name| name.as_str().ok());
    let mut names: Vec<String> = common.map(str::to_owned).collect();
    for extension in cert.extensions() {
        let ParsedExtension::SubjectAlternativeName(others) = extension.parsed_extension() else {
            continue;
        };
        names.extend(others.general_names.iter().filter_map(|name| match name {
            GeneralName::DNSName(name) | GeneralName::RFC822Name(name) | GeneralName::URI(name) => {
                Some((*name).to_owned())
            }
            _ => None,
        }));
    }
    names.dedup();
    names
}
