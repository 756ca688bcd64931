package fakehub

import (
	"crypto/ecdsa"
	"crypto/elliptic"
	"crypto/rand"
	"crypto/sha256"
	"encoding/base64"
	"encoding/json"
	"errors"
	"fmt"
	"math/big"
	"net/http"
	"slices"
	"strings"
	"time"
)

// Issuer is the issuer of the tokens.
const Issuer = "https://kubernetes.default.svc"

// keyID is the id of the only key.
const keyID = "hub"

// issuer signs tokens of service accounts.
type issuer struct {
	key     *ecdsa.PrivateKey
	n       int
	opaque  map[string]TokenUser
	revoked map[string]bool // by subject
}

// TokenUser is the user of a token that only the server knows, as kubeadm's tokens.
type TokenUser struct {
	User   string
	Groups []string
}

func newIssuer() *issuer {
	key, err := ecdsa.GenerateKey(elliptic.P256(), rand.Reader)
	if err != nil {
		panic(err)
	}
	return &issuer{key: key, opaque: map[string]TokenUser{}, revoked: map[string]bool{}}
}

type claims struct {
	Issuer   string   `json:"iss"`
	Subject  string   `json:"sub"`
	Audience []string `json:"aud"`
	Expires  int64    `json:"exp"`
	Issued   int64    `json:"iat"`
	ID       string   `json:"jti"`
	Names    Object   `json:"kubernetes.io"`
}

func (c *claims) user() string { return c.Subject }

func (c *claims) groups() []string {
	namespace, _ := c.Names["namespace"].(string)
	return []string{"system:serviceaccounts", "system:serviceaccounts:" + namespace, "system:authenticated"}
}

// Token returns a token of a service account, which need not exist.
func (s *Server) Token(namespace, name string, lifetime time.Duration, audiences ...string) string {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.tokens.issue(namespace, name, s.now(), lifetime, audiences)
}

// Revoke invalidates all tokens of a service account, as its deletion does.
func (s *Server) Revoke(namespace, name string) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens.revoked["system:serviceaccount:"+namespace+":"+name] = true
}

// AddToken registers a token that only the server knows.
func (s *Server) AddToken(token string, client TokenUser) {
	s.mu.Lock()
	defer s.mu.Unlock()
	s.tokens.opaque[token] = client
}

func (i *issuer) issue(namespace, name string, now time.Time, lifetime time.Duration, audiences []string) string {
	i.n++
	if len(audiences) == 0 {
		audiences = []string{Issuer}
	}
	head := encode(Object{"alg": "ES256", "kid": keyID})
	body := encode(claims{
		Issuer: Issuer, Subject: "system:serviceaccount:" + namespace + ":" + name, Audience: audiences, Expires: now.Add(lifetime).Unix(), Issued: now.Unix(),
		ID: fmt.Sprint("t-", i.n), Names: Object{"namespace": namespace, "serviceaccount": Object{"name": name, "uid": "uid-" + name}},
	})
	digest := sha256.Sum256([]byte(head + "." + body))
	r, v, err := ecdsa.Sign(rand.Reader, i.key, digest[:])
	if err != nil {
		panic(err)
	}
	signature := append(r.FillBytes(make([]byte, 32)), v.FillBytes(make([]byte, 32))...)
	return head + "." + body + "." + base64.RawURLEncoding.EncodeToString(signature)
}

func encode(what any) string { return base64.RawURLEncoding.EncodeToString(done(0, what).json) }

// keys returns the keys that verify tokens.
func (i *issuer) keys() Object {
	point, err := i.key.PublicKey.Bytes()
	if err != nil {
		panic(err)
	}
	return Object{"keys": []any{Object{
		"kty": "EC", "crv": "P-256", "use": "sig", "alg": "ES256", "kid": keyID,
		"x": base64.RawURLEncoding.EncodeToString(point[1:33]), "y": base64.RawURLEncoding.EncodeToString(point[33:]),
	}}}
}

var errToken = errors.New("the token is not valid")

func (i *issuer) verify(token string, now time.Time, audiences []string) (*claims, error) {
	parts := strings.Split(token, ".")
	if len(parts) != 3 {
		return nil, errToken
	}
	body, err := base64.RawURLEncoding.DecodeString(parts[1])
	signature, err2 := base64.RawURLEncoding.DecodeString(parts[2])
	if errors.Join(err, err2) != nil || len(signature) != 64 {
		return nil, errToken
	}
	digest := sha256.Sum256([]byte(parts[0] + "." + parts[1]))
	r, v := new(big.Int).SetBytes(signature[:32]), new(big.Int).SetBytes(signature[32:])
	c := &claims{}
	switch {
	case !ecdsa.Verify(&i.key.PublicKey, digest[:], r, v), json.Unmarshal(body, c) != nil, now.Unix() >= c.Expires, i.revoked[c.Subject]:
		return nil, errToken
	case len(audiences) == 0:
		audiences = []string{Issuer}
	}
	if !slices.ContainsFunc(audiences, func(a string) bool { return slices.Contains(c.Audience, a) }) {
		return nil, errToken
	}
	return c, nil
}

// review answers reviews and token requests; the caller holds the lock.
func (s *Server) review(q *Request) (reply, bool) {
	if q.Verb != "create" {
		return reply{}, false
	}
	about := q.Resource.Name + "/" + q.Subresource
	if about != "tokenreviews/" && about != "subjectaccessreviews/" && about != "serviceaccounts/token" &&
		about != "selfsubjectaccessreviews/" && about != "selfsubjectreviews/" {
		return reply{}, false
	}
	o, err := q.decode()
	if err != nil {
		return failure(http.StatusBadRequest, "BadRequest", err.Error()), true
	}
	spec, _ := o["spec"].(Object)
	switch {
	case about == "selfsubjectreviews/":
		o["status"] = Object{"userInfo": Object{"username": q.User, "groups": q.Groups}}
	case !s.authorized(q) && about != "selfsubjectaccessreviews/":
		return failure(http.StatusForbidden, "Forbidden", fmt.Sprintf("user %q may not %s", q.User, q)), true
	case about == "tokenreviews/":
		o["status"] = s.reviewToken(spec)
	case about == "serviceaccounts/token":
		return s.requestToken(q, o, spec), true
	default:
		o["status"] = s.reviewAccess(q, spec)
	}
	return done(http.StatusCreated, o), true
}

func (s *Server) reviewToken(spec Object) Object {
	token, _ := spec["token"].(string)
	audiences := strs(spec["audiences"])
	if client, ok := s.tokens.opaque[token]; ok {
		return Object{"authenticated": true, "user": Object{"username": client.User, "groups": append(slices.Clone(client.Groups), "system:authenticated")}, "audiences": audiences}
	}
	c, err := s.tokens.verify(token, s.now(), audiences)
	if err != nil {
		return Object{"authenticated": false, "error": err.Error()}
	}
	shared := []string{}
	for _, a := range audiences {
		if slices.Contains(c.Audience, a) {
			shared = append(shared, a)
		}
	}
	return Object{"authenticated": true, "user": Object{"username": c.user(), "uid": "uid", "groups": c.groups()}, "audiences": shared}
}

func (s *Server) reviewAccess(q *Request, spec Object) Object {
	a := Attributes{User: q.User, Groups: q.Groups}
	if q.Resource.Name == "subjectaccessreviews" {
		a.User, _ = spec["user"].(string)
		a.Groups = strs(spec["groups"])
	} else if !strings.Contains(q.User, ":") {
		a.Groups = []string{admins}
	}
	attributes, _ := spec["resourceAttributes"].(Object)
	for field, to := range map[string]*string{
		"verb": &a.Verb, "group": &a.Group, "resource": &a.Resource, "subresource": &a.Subresource, "namespace": &a.Namespace, "name": &a.Name,
	} {
		*to, _ = attributes[field].(string)
	}
	return Object{"allowed": s.may(a)}
}

func (s *Server) requestToken(q *Request, o, spec Object) reply {
	if s.objects["serviceaccounts."][q.Namespace+"/"+q.Name] == nil {
		return failure(http.StatusNotFound, "NotFound", fmt.Sprintf("serviceaccounts %q not found", q.Name))
	}
	lifetime := time.Hour
	if seconds, ok := spec["expirationSeconds"].(float64); ok {
		lifetime = time.Duration(seconds) * time.Second
	}
	now := s.now()
	o["status"] = Object{"token": s.tokens.issue(q.Namespace, q.Name, now, lifetime, strs(spec["audiences"])), "expirationTimestamp": now.Add(lifetime).UTC().Format(time.RFC3339)}
	return done(http.StatusCreated, o)
}
