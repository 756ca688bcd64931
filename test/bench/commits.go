package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"strconv"
	"strings"

	"github.com/hawser-io/hawser/internal/childproc"
	"github.com/hawser-io/hawser/pkg/transport"
)

// subject is one build of the broker, with the light agents that connect to it.
type subject struct {
	name                   string // for the table: "now", or a short commit
	brokerPath, agentsPath string
	protocol               int // version of the Hawser extensions that the broker speaks
}

const lightfleet = "test/bench/lightfleet"

// present returns the broker of this checkout, which make has built, and builds its light agents.
func present(ctx context.Context, root string) (subject, error) {
	s := subject{
		name: "now", protocol: transport.Protocol,
		brokerPath: filepath.Join(root, "bin", "hawser-broker"), agentsPath: filepath.Join(root, ".cache", "lightfleet"),
	}
	return s, goBuild(ctx, root, s.agentsPath, "./"+lightfleet)
}

// checkout builds the broker of another commit in .cache/commits, unless an earlier run did. Its light agents are
// the present ones, or with ownAgents those with the client code of that commit.
func checkout(ctx context.Context, root, commit string, now subject, ownAgents bool) (s subject, err error) {
	out, err := childproc.Run(ctx, "git", "-C", root, "rev-parse", "--verify", commit+"^{commit}")
	if err != nil {
		return s, fmt.Errorf("name a commit of this repository: %w", err)
	}
	sha := strings.TrimSpace(string(out))
	dir := filepath.Join(root, ".cache", "commits", sha)
	s = subject{name: sha[:7], brokerPath: filepath.Join(dir, "bin", "hawser-broker"), agentsPath: now.agentsPath}
	if _, err := os.Stat(s.brokerPath); errors.Is(err, fs.ErrNotExist) {
		if err := extract(ctx, root, sha, dir); err != nil {
			return s, err
		}
		if err := goBuild(ctx, dir, s.brokerPath, "./cmd/broker"); err != nil {
			return s, err
		}
	}
	text, err := os.ReadFile(filepath.Join(dir, "pkg", "transport", "transport.go"))
	if err != nil {
		return s, err
	}
	s.protocol = protocolOf(text)
	if ownAgents {
		s.agentsPath = filepath.Join(dir, "bin", "lightfleet")
		return s, buildOwnAgents(ctx, root, dir, s.agentsPath)
	}
	return s, nil
}

// extract writes the files of a commit into dir.
func extract(ctx context.Context, root, sha, dir string) error {
	if err := os.MkdirAll(dir, 0o750); err != nil {
		return err
	}
	archive := filepath.Join(dir, "commit.tar")
	if _, err := childproc.Run(ctx, "git", "-C", root, "archive", "--output", archive, sha); err != nil {
		return err
	}
	if _, err := childproc.Run(ctx, "tar", "-xf", archive, "-C", dir); err != nil {
		return err
	}
	return os.Remove(archive)
}

// goBuild builds a program with the environment and flags of make.
func goBuild(ctx context.Context, dir, program, pkg string) error {
	_, err := childproc.Run(ctx, "go", "build", "-C", dir, "-pgo", "auto", "-ldflags", "-s -w", "-o", program, pkg)
	return err
}

var protocolConst = regexp.MustCompile(`(?m)^const Protocol = (\d+)$`)

// protocolOf returns the protocol version in the text of pkg/transport/transport.go. The first version was no
// constant.
func protocolOf(text []byte) int {
	m := protocolConst.FindSubmatch(text)
	if m == nil {
		return 1
	}
	n, _ := strconv.Atoi(string(m[1])) // only digits
	return n
}

// buildOwnAgents builds the light agents with the client code of another checkout.
func buildOwnAgents(ctx context.Context, root, dir, program string) error {
	session, err := os.ReadFile(filepath.Join(dir, "pkg", "session", "session.go"))
	if err != nil {
		return err
	}
	to := filepath.Join(dir, lightfleet)
	if err := os.MkdirAll(to, 0o750); err != nil {
		return err
	}
	files, err := filepath.Glob(filepath.Join(root, lightfleet, "*.go"))
	if err != nil {
		return err
	}
	for _, name := range files {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		if err := os.WriteFile(filepath.Join(to, filepath.Base(name)), asBefore(text, session), 0o600); err != nil {
			return err
		}
	}
	return goBuild(ctx, dir, program, "./"+lightfleet)
}

// handlerType matches the only interface of package session, which is also the name of the field with the handler.
var handlerType = regexp.MustCompile(`(?m)^type (\w+) interface`)

// asBefore adapts the source of the light agents to an older package session, where the handler had another name.
func asBefore(text, session []byte) []byte {
	if m := handlerType.FindSubmatch(session); m != nil {
		return bytes.ReplaceAll(text, []byte("\t\tHandler: a,"), fmt.Appendf(nil, "\t\t%s: a,", m[1]))
	}
	return text
}
