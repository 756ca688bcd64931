package traceability

import (
	"fmt"
	"regexp"
	"slices"
	"strings"
	"testing"
)

// matrix is a table of docs/security-matrix.md: what each client or program can do with each object.
type matrix struct {
	// corner is the head of the first column.
	corner string
	// clients are the heads of the other columns.
	clients []string
	// rows are the required rows; nil: any rows.
	rows []string
	// cell is the form of a cell. It ends in labels, except where unlabelled cells are allowed.
	cell *regexp.Regexp
}

// labelled matches a cell that ends in labels. unlabelled also matches cells without a label.
var (
	labelled   = regexp.MustCompile(`^[a-z][a-zA-Z', -]* M[0-9]+(?:, M[0-9]+)*$`)
	unlabelled = regexp.MustCompile(`^(?:yes|–|[a-z, ]+ M[0-9]+)$`)
	oneLabel   = regexp.MustCompile(`M[0-9]+`)
)

// everywhere are the columns of the matrices of hub and cluster.
var everywhere = []string{"no certificate", "bootstrap token", "agent", "source", "hub-source", "broker", "operator", "viewer", "executor", "writer", "stateless broker"}

var matrices = []matrix{
	{"can it", []string{"agent", "source", "viewer", "operator", "hub", "broker"}, nil, unlabelled},
	{"on the hub", everywhere, []string{
		"ManagedCluster: metadata", "ManagedCluster: spec, acceptance", "ManagedCluster: status",
		"CertificateSigningRequest: create", "CertificateSigningRequest: approve", "CertificateSigningRequest: sign",
		"Namespace", "Lease of a cluster", "Event", "ManifestWork: spec", "ManifestWork: status", "ManifestWork: finalizer, removal",
		"ManagedClusterAddOn: status", "tokens", "RoleBinding", "Secrets, ConfigMaps",
	}, labelled},
	{"in the broker", []string{"no certificate", "bootstrap token", "agent", "source", "hub-source", "operator", "viewer", "writer"}, []string{
		"record: spec", "record: status", "record: deletion", "record: owner", "denylist", "quotas, identities, configuration",
		"orphans and approvals", "registration: clusters, acceptance", "registration: keys of tokens, CAs of agents",
	}, labelled},
	{"on the cluster", everywhere, []string{
		"objects of works", "AppliedManifestWork", "the agent's Secret, ConfigMaps, Leases", "the key of the agent", "hub identity",
	}, labelled},
}

// TestSecurity_EachCellHasItsTests checks that tests exist for each cell of docs/security-matrix.md.
func TestSecurity_EachCellHasItsTests(t *testing.T) {
	page := read(t, "docs", "security-matrix.md")
	rows, bad := Parse(read(t, "docs", "traceability", "security.md"), Pages["security.md"].Columns())
	report(t, bad)
	report(t, notThere(root, rows))
	var all []string
	for _, m := range matrices {
		used, bad := m.read(page)
		report(t, bad)
		all = append(all, used...)
	}
	slices.Sort(all)
	report(t, unanswered(rows, slices.Compact(all)))
}

// read returns the labels that the cells of the matrix name on a page, each once, and the errors.
func (m matrix) read(markdown string) (used, bad []string) {
	header := "| " + m.corner + " | " + strings.Join(m.clients, " | ") + " |"
	_, rest, found := strings.Cut(markdown, header+"\n")
	if !found {
		return nil, []string{"no table begins with " + header}
	}
	var rows []string
	for line := range strings.Lines(rest) {
		line = strings.TrimSpace(line)
		if !strings.HasPrefix(line, "|") {
			break
		}
		cells := strings.Split(strings.Trim(line, "|"), "|")
		if strings.HasPrefix(cells[0], "---") {
			continue
		}
		rows = append(rows, strings.TrimSpace(cells[0]))
		if len(cells) != 1+len(m.clients) {
			bad = append(bad, fmt.Sprintf("%s: %d columns", line, len(cells)))
			continue
		}
		for i, c := range cells[1:] {
			if c = strings.TrimSpace(c); !m.cell.MatchString(c) {
				bad = append(bad, fmt.Sprintf("%s, %s: %q does not end in a label, as no M1", cells[0], m.clients[i], c))
			}
			for _, l := range oneLabel.FindAllString(c, -1) {
				if !slices.Contains(used, l) {
					used = append(used, l)
				}
			}
		}
	}
	for _, want := range m.rows {
		if !slices.Contains(rows, want) {
			bad = append(bad, fmt.Sprintf("%s: no row for %s", m.corner, want))
		}
	}
	if m.rows != nil && len(rows) > len(m.rows) {
		bad = append(bad, fmt.Sprintf("%s: %d rows, name them all in test/traceability", m.corner, len(rows)))
	}
	return used, bad
}

func TestMatrix(t *testing.T) {
	const header = "| can it | agent | source | viewer | operator | hub | broker |\n|---|---|---|---|---|---|---|\n"
	free := matrices[0]
	used, bad := free.read(header + "| a | no M1 | no M2 | yes | – | of its own M1 | no M3 |\n\n| b | c |\n")
	report(t, bad)
	if !slices.Equal(used, []string{"M1", "M2", "M3"}) {
		t.Errorf("used %v", used)
	}
	for wrong, want := range map[string]string{
		"":                         "no table",
		header + "| a | no M1 |\n": "2 columns",
		header + "| a | no | – | – | – | – | yes |\n": "agent",
	} {
		_, bad := free.read(wrong)
		wantOne(t, bad, want)
	}

	strict := matrix{"at home", []string{"cat", "dog"}, []string{"a", "b"}, labelled}
	const home = "| at home | cat | dog |\n|---|---|---|\n"
	used, bad = strict.read(home + "| a | no M1 | its own, some M2, M3 |\n| b | yes M1 | the dog's M4 |\n")
	report(t, bad)
	if !slices.Equal(used, []string{"M1", "M2", "M3", "M4"}) {
		t.Errorf("used %v", used)
	}
	for wrong, want := range map[string]string{
		home + "| a | no M1 | yes |\n| b | no M1 | no M1 |\n":                          `a , dog: "yes" does not end in a label`,
		home + "| a | no M1 | – |\n| b | no M1 | no M1 |\n":                            "does not end in a label",
		home + "| a | no M1 | no M1 |\n":                                               "no row for b",
		home + "| a | no M1 | no M1 |\n| b | no M1 | no M1 |\n| c | no M1 | no M1 |\n": "3 rows",
	} {
		_, bad := strict.read(wrong)
		wantOne(t, bad, want)
	}
}
