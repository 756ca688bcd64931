package pki

import (
	"errors"
	"fmt"
	"regexp"
	"strings"
)

// Role is the role of a certificate's holder. Broker and Webhook are servers; the other four are the client
// roles that the broker authorizes.
type Role string

// The roles of certificates.
const (
	Broker   Role = "broker"
	Agent    Role = "agent"
	Source   Role = "source"
	Operator Role = "operator"
	Viewer   Role = "viewer"
	Webhook  Role = "webhook"
)

// serves reports whether the role is a server, whose certificate names hosts.
func (r Role) serves() bool { return r == Broker || r == Webhook }

// Roles lists all roles, in the order of help texts.
func Roles() []Role { return []Role{Broker, Agent, Source, Operator, Viewer, Webhook} }

// ErrUnknownRole is wrapped by the error of [ParseRole].
var ErrUnknownRole = errors.New("unknown role")

// ParseRole returns the role called s, or an error that lists the known ones.
func ParseRole(s string) (Role, error) {
	for _, r := range Roles() {
		if s == string(r) {
			return r, nil
		}
	}
	names := make([]string, 0, len(Roles()))
	for _, r := range Roles() {
		names = append(names, string(r))
	}
	return "", fmt.Errorf("%w %q: use one of %s", ErrUnknownRole, s, strings.Join(names, ", "))
}

// ErrInvalidName is wrapped by all errors about a name that is not allowed in a subject or a file name.
var ErrInvalidName = errors.New("invalid name")

// maxNameLength is the length of a DNS subdomain, which Kubernetes also allows for the name of a cluster.
const maxNameLength = 253

var validName = regexp.MustCompile(`^[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*$`)

func checkName(name string) error {
	if len(name) > maxNameLength || !validName.MatchString(name) {
		return fmt.Errorf("%w %q: use at most %d lower-case letters, digits, '-' and '.', starting and ending with a letter or digit",
			ErrInvalidName, name, maxNameLength)
	}
	return nil
}

// clusterPrefix is the prefix of agents' names in Open Cluster Management.
const clusterPrefix = "system:open-cluster-management:"

// Subject returns the common name of a certificate for (role, name), and the organization if one is used:
//
//	agent     system:open-cluster-management:<name>:agent, with the organization
//	          system:open-cluster-management:<name>; the broker recognises this form
//	others    hawser:<role>:<name>; the broker uses its mapping
//
// name is the name of the cluster for an agent and the source id for a source.
func Subject(role Role, name string) (commonName, organization string) {
	if role == Agent {
		return clusterPrefix + name + ":agent", clusterPrefix + name
	}
	return "hawser:" + string(role) + ":" + name, ""
}
