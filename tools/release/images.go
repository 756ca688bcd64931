package main

import (
	"archive/tar"
	"bytes"
	"compress/gzip"
	"encoding/pem"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"time"

	v1 "github.com/google/go-containerregistry/pkg/v1"
	"github.com/google/go-containerregistry/pkg/v1/empty"
	"github.com/google/go-containerregistry/pkg/v1/layout"
	"github.com/google/go-containerregistry/pkg/v1/mutate"
	"github.com/google/go-containerregistry/pkg/v1/tarball"
	"github.com/google/go-containerregistry/pkg/v1/types"
	"golang.org/x/crypto/x509roots/fallback/bundle"
)

// programs are the programs of a release for Linux, each also in its own image. So a managed cluster downloads
// only the agent, also over a slow network.
var programs = []string{"hawser", "hawser-agent", "hawser-broker", "hawser-hub-source"}

// user is the user and group of the programs, unless a pod sets another. deploy/ has the same value.
const user = "65532:65532"

// rootsFile is the path where Go and other software on Linux look for public CAs.
const rootsFile = "etc/ssl/certs/ca-certificates.crt"

// build describes the built programs and their directory.
type build struct {
	root, version string
	at            time.Time
	platforms     []v1.Platform
	printf        func(line string)
}

func (b build) binary(p v1.Platform, program string) string {
	return filepath.Join(b.root, "bin", p.OS+"_"+p.Architecture, program)
}

func (b build) imageDir(program string) string {
	return filepath.Join(b.root, "bin", "images", program)
}

// images writes an OCI layout for each program: one index, with an image for each Linux platform.
func (b build) images() error {
	roots, err := layer(file{name: rootsFile, mode: 0o644, data: publicRoots()})
	if err != nil {
		return err
	}
	for _, program := range programs {
		digest, err := b.image(program, roots)
		if err != nil {
			return fmt.Errorf("image of %s: %w", program, err)
		}
		b.printf("bin/images/" + program + ": " + digest.String())
	}
	return nil
}

func (b build) image(program string, roots v1.Layer) (v1.Hash, error) {
	index := mutate.IndexMediaType(empty.Index, types.OCIImageIndex)
	for _, p := range b.platforms {
		if p.OS != "linux" {
			continue
		}
		data, err := os.ReadFile(b.binary(p, program))
		if err != nil {
			return v1.Hash{}, err
		}
		binary, err := layer(file{name: program, mode: 0o755, data: data})
		if err != nil {
			return v1.Hash{}, err
		}
		img, err := b.imageFor(p, program, roots, binary)
		if err != nil {
			return v1.Hash{}, err
		}
		index = mutate.AppendManifests(index, mutate.IndexAddendum{Add: img, Descriptor: v1.Descriptor{Platform: &p}})
	}
	dir := b.imageDir(program)
	if err := os.RemoveAll(dir); err != nil {
		return v1.Hash{}, err
	}
	path, err := layout.Write(dir, mutate.IndexMediaType(empty.Index, types.OCIImageIndex))
	if err != nil {
		return v1.Hash{}, err
	}
	tag := map[string]string{"org.opencontainers.image.ref.name": b.version}
	if err := path.AppendIndex(index, layout.WithAnnotations(tag)); err != nil {
		return v1.Hash{}, err
	}
	return index.Digest()
}

// imageFor returns the image of one program for one platform.
func (b build) imageFor(p v1.Platform, program string, layers ...v1.Layer) (v1.Image, error) {
	img := mutate.ConfigMediaType(mutate.MediaType(empty.Image, types.OCIManifestSchema1), types.OCIConfigJSON)
	img, err := mutate.ConfigFile(img, &v1.ConfigFile{
		OS: p.OS, Architecture: p.Architecture, Created: v1.Time{Time: b.at},
		RootFS: v1.RootFS{Type: "layers"},
		Config: v1.Config{
			Entrypoint: []string{"/" + program},
			User:       user,
			WorkingDir: "/",
			Labels: map[string]string{
				"org.opencontainers.image.title":    program,
				"org.opencontainers.image.version":  b.version,
				"org.opencontainers.image.licenses": "Apache-2.0",
			},
		},
	})
	if err != nil {
		return nil, err
	}
	var added []mutate.Addendum
	for _, l := range layers {
		added = append(added, mutate.Addendum{Layer: l, History: v1.History{Created: v1.Time{Time: b.at}, CreatedBy: "make images"}})
	}
	return mutate.Append(img, added...)
}

// file is one file of a layer or an archive.
type file struct {
	name string
	mode int64
	data []byte
}

// layer returns a layer with the files. They belong to root, so that no program can change them, and have no
// time, so that unchanged layers are pulled once.
func layer(files ...file) (v1.Layer, error) {
	var buf bytes.Buffer
	if err := writeTar(&buf, time.Unix(0, 0), files); err != nil {
		return nil, err
	}
	opener := func() (io.ReadCloser, error) { return io.NopCloser(bytes.NewReader(buf.Bytes())), nil }
	return tarball.LayerFromOpener(opener, tarball.WithMediaType(types.OCILayer), tarball.WithCompressionLevel(gzip.DefaultCompression), tarball.WithCompressedCaching)
}

// writeTar writes the files, and each directory before its first file.
func writeTar(dst io.Writer, at time.Time, files []file) error {
	w := tar.NewWriter(dst)
	made := map[string]bool{}
	for _, f := range files {
		for i, r := range f.name {
			if dir := f.name[:i]; r == '/' && !made[dir] {
				made[dir] = true
				if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeDir, Name: dir + "/", Mode: 0o755, ModTime: at}); err != nil {
					return err
				}
			}
		}
		if err := w.WriteHeader(&tar.Header{Typeflag: tar.TypeReg, Name: f.name, Mode: f.mode, Size: int64(len(f.data)), ModTime: at}); err != nil {
			return err
		}
		if _, err := w.Write(f.data); err != nil {
			return err
		}
	}
	return w.Close()
}

// publicRoots returns the CAs that Mozilla trusts, at the version of the module in go.mod. It omits CAs that
// are trusted only for certificates up to a date, because a file of certificates cannot express that.
func publicRoots() []byte {
	var b strings.Builder
	for root := range bundle.Roots() {
		if root.Constraint == nil {
			b.Write(pem.EncodeToMemory(&pem.Block{Type: "CERTIFICATE", Bytes: root.Certificate}))
		}
	}
	return []byte(b.String())
}
