package identity

import (
	"bytes"
	"crypto/hkdf"
	"crypto/sha256"
	"crypto/tls"
	"crypto/x509"
	"encoding/binary"
	"fmt"
	"time"

	"golang.org/x/crypto/cryptobyte"
)

// A session ticket (RFC 8446, section 4.6.1) lets a client resume its TLS session: neither side signs or sends a
// certificate again. The ticket contains the client's certificates. The broker keeps no state for it.
//
// The key of the tickets is derived from the private key of the port. So replicas with one certificate accept the
// tickets of each other, a new private key ends all tickets, and no backup contains the key.
//
// A ticket is accepted only while the CAs of clients are those of its issue, and the certificates that the CAs
// verified then are valid. Otherwise the client gets a full handshake. Denials and acceptance are checked after the
// handshake, for resumed sessions too. TLS 1.2 has no tickets: a thief of the private key could decrypt
// recorded connections.

// ticketLabel separates the ticket key from other keys that may be derived from the same private key. ticketMark
// begins the entry of a ticket that belongs to this package, as [tls.SessionState] requires.
const ticketLabel, ticketMark = "hawser session tickets 1", "hawser/1"

// ticketKey derives the key of session tickets from the private key of a certificate, by HKDF (RFC 5869) with
// SHA-256.
func ticketKey(cert *tls.Certificate) (key [32]byte, err error) {
	private, err := x509.MarshalPKCS8PrivateKey(cert.PrivateKey)
	if err != nil {
		return key, fmt.Errorf("tls: the private key cannot be encoded: %w", err)
	}
	b, err := hkdf.Key(sha256.New, private, nil, ticketLabel, len(key))
	copy(key[:], b)
	return key, err
}

// generationOf returns a hash of the files with CAs. It differs after each change of one of them.
func generationOf(files ...[]byte) (g [sha256.Size]byte) {
	h := sha256.New()
	for _, f := range files {
		h.Write(binary.BigEndian.AppendUint64(nil, uint64(len(f)))) // a hash returns no error
		h.Write(f)
	}
	return [sha256.Size]byte(h.Sum(nil))
}

// ticketEntry is what a ticket says about the verification of the client: the generation of the CAs, and the
// expiry of the chain in Unix seconds.
func (m material) ticketEntry(end time.Time) []byte {
	return binary.BigEndian.AppendUint64(append([]byte(ticketMark), m.generation[:]...), uint64(end.Unix()))
}

// acceptsTicket reports whether a ticket with these entries may be resumed at a time. A ticket of a client without
// a certificate may not.
func (m material) acceptsTicket(entries [][]byte, now time.Time) bool {
	for _, e := range entries {
		if rest, ours := bytes.CutPrefix(e, append([]byte(ticketMark), m.generation[:]...)); ours && len(rest) == 8 {
			return now.Unix() < int64(binary.BigEndian.Uint64(rest))
		}
	}
	return false
}

// issueTickets lets clients of a configuration resume their sessions. endOf is called in the handshake of a client
// with a certificate. It returns the expiry of its chain, and the zero time without a chain.
func (m material) issueTickets(c *tls.Config, now func() time.Time, endOf func(tls.ConnectionState) time.Time) {
	c.SessionTicketsDisabled = false
	c.SetSessionTicketKeys([][32]byte{m.tickets})
	c.WrapSession = func(cs tls.ConnectionState, s *tls.SessionState) ([]byte, error) {
		var end time.Time // long ago
		if len(cs.PeerCertificates) > 0 {
			end = endOf(cs)
		}
		s.Extra = append(s.Extra, m.ticketEntry(end))
		return c.EncryptTicket(cs, s)
	}
	c.UnwrapSession = func(ticket []byte, cs tls.ConnectionState) (*tls.SessionState, error) {
		s, err := c.DecryptTicket(ticket, cs)
		if err != nil || s == nil || !m.acceptsTicket(s.Extra, now()) {
			return nil, err
		}
		return s, nil
	}
}

// Constants of TLS 1.3: a record with handshake messages, a ClientHello, and its extension with tickets (RFC 8446,
// sections 5.1, 4 and 4.2.11).
const (
	recordHandshake   = 22
	messageHello      = 1
	extensionTickets  = 41
	helloRandomLength = 2 + 32 // legacy_version and random
)

// helloOf returns the body of the ClientHello at the start of a connection, empty if it is not complete.
func helloOf(connection []byte) (hello cryptobyte.String) {
	var version uint16
	var kind uint8
	var record cryptobyte.String
	in := cryptobyte.String(connection)
	if !in.ReadUint8(&kind) || kind != recordHandshake || !in.ReadUint16(&version) || !in.ReadUint16LengthPrefixed(&record) ||
		!record.ReadUint8(&kind) || kind != messageHello || !record.ReadUint24LengthPrefixed(&hello) {
		return nil
	}
	return hello
}

// ticketOf returns the first ticket in the ClientHello at the start of a connection, nil if there is none, or if the
// ClientHello is not complete.
func ticketOf(connection []byte) []byte {
	hello := helloOf(connection)
	var skipped, extensions cryptobyte.String
	if !hello.Skip(helloRandomLength) || !hello.ReadUint8LengthPrefixed(&skipped) || // session id
		!hello.ReadUint16LengthPrefixed(&skipped) || !hello.ReadUint8LengthPrefixed(&skipped) || // cipher suites, compression
		!hello.ReadUint16LengthPrefixed(&extensions) {
		return nil
	}
	for !extensions.Empty() {
		var id uint16
		var body, tickets, ticket cryptobyte.String
		if !extensions.ReadUint16(&id) || !extensions.ReadUint16LengthPrefixed(&body) {
			return nil
		}
		if id == extensionTickets {
			if !body.ReadUint16LengthPrefixed(&tickets) || !tickets.ReadUint16LengthPrefixed(&ticket) {
				return nil
			}
			return ticket
		}
	}
	return nil
}
