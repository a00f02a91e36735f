//! Makes TLS certificates for a test.

use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::sync::atomic::{AtomicU64, Ordering};

use rcgen::{
    BasicConstraints, CertificateParams, CertificateRevocationListParams, DnType,
    ExtendedKeyUsagePurpose, IsCa, Issuer, KeyIdMethod, KeyPair, KeyUsagePurpose,
    RevokedCertParams, SerialNumber, date_time_ymd,
};

/// A certificate authority for a test: it signs and revokes TLS certificates.
pub struct Authority {
    issuer: Issuer<'static, KeyPair>,
    pem: String,
}

/// Whether a TLS certificate is valid today, has expired, or is not valid yet.
#[derive(Clone, Copy)]
pub enum Valid {
    Now,
    Past,
    Future,
}

impl Authority {
    pub fn new(name: &str) -> Self {
        let mut params = CertificateParams::default();
        params.distinguished_name.push(DnType::CommonName, name);
        params.is_ca = IsCa::Ca(BasicConstraints::Unconstrained);
        params.key_usages = vec![
            KeyUsagePurpose::KeyCertSign,
            KeyUsagePurpose::CrlSign,
            KeyUsagePurpose::DigitalSignature,
        ];
        let key = KeyPair::generate().unwrap();
        let pem = params.self_signed(&key).unwrap().pem();
        Self { issuer: Issuer::new(params, key), pem }
    }

    /// Writes the authority's certificate to `ca-cert.pem` in `directory`, the file name that NBD programs expect.
    pub fn write(&self, directory: &Path) {
        std::fs::create_dir_all(directory).unwrap();
        std::fs::write(directory.join("ca-cert.pem"), &self.pem).unwrap();
    }

    /// Writes the authority's own certificate and key as those of a client.
    pub fn pose(&self, directory: &Path) {
        self.write(directory);
        std::fs::write(directory.join("client-cert.pem"), &self.pem).unwrap();
        let key = self.issuer.key().serialize_pem();
        std::fs::write(directory.join("client-key.pem"), key).unwrap();
    }

    /// Writes `crl.pem` in `directory`: the list that revokes the certificates with the serial numbers `serials`.
    pub fn revoke(&self, directory: &Path, serials: &[u64]) {
        let revoked = |serial: &u64| RevokedCertParams {
            serial_number: SerialNumber::from(*serial),
            revocation_time: date_time_ymd(2024, 1, 1),
            reason_code: None,
            invalidity_date: None,
        };
        let params = CertificateRevocationListParams {
            this_update: date_time_ymd(2024, 1, 1),
            next_update: date_time_ymd(2090, 1, 1),
            crl_number: SerialNumber::from(1),
            issuing_distribution_point: None,
            revoked_certs: serials.iter().map(revoked).collect(),
            key_identifier_method: KeyIdMethod::Sha256,
        };
        let list = params.signed_by(&self.issuer).unwrap();
        std::fs::write(directory.join("crl.pem"), list.pem().unwrap()).unwrap();
    }

    /// Signs a certificate for `role` (`server` or `client`), and writes it and its key to `ROLE-cert.pem` and
    /// `ROLE-key.pem`. Returns the serial number of the certificate.
    pub fn sign(
        &self,
        directory: &Path,
        role: &str,
        common: &str,
        names: &[&str],
        valid: Valid,
    ) -> u64 {
        static SERIAL: AtomicU64 = AtomicU64::new(1);
        let serial = SERIAL.fetch_add(1, Ordering::Relaxed);
        let names: Vec<String> = names.iter().map(|name| (*name).to_owned()).collect();
        let mut params = CertificateParams::new(names).unwrap();
        params.serial_number = Some(SerialNumber::from(serial));
        params.distinguished_name.push(DnType::CommonName, common);
        params.key_usages = vec![KeyUsagePurpose::DigitalSignature];
        params.extended_key_usages = vec![match role {
            "server" => ExtendedKeyUsagePurpose::ServerAuth,
            _ => ExtendedKeyUsagePurpose::ClientAuth,
        }];
        (params.not_before, params.not_after) = match valid {
            Valid::Now => (date_time_ymd(2020, 1, 1), date_time_ymd(2090, 1, 1)),
            Valid::Past => (date_time_ymd(2020, 1, 1), date_time_ymd(2021, 1, 1)),
            Valid::Future => (date_time_ymd(2089, 1, 1), date_time_ymd(2090, 1, 1)),
        };
        let key = KeyPair::generate().unwrap();
        let cert = params.signed_by(&key, &self.issuer).unwrap();
        std::fs::create_dir_all(directory).unwrap();
        std::fs::write(directory.join(format!("{role}-cert.pem")), cert.pem()).unwrap();
        let path = directory.join(format!("{role}-key.pem"));
        std::fs::write(&path, key.serialize_pem()).unwrap();
        std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o600)).unwrap();
        serial
    }
}
