// The second reading of JSON: encoding/json into the structs of the OCI runtime-spec and of kubelet's records.
//
// On stdin: a line with the kind and the number of bytes, then the bytes. On stdout: a line with the value as JSON, or
// an empty line if Go refuses. Like runc, it reads one document and ignores what follows it.
package main

import (
	"bufio"
	"bytes"
	"encoding/json"
	"fmt"
	"io"
	"os"
)

type process struct {
	Env          []string
	Args         []string
	Cwd          string
	Terminal     bool
	Capabilities *struct{ Bounding, Effective, Inheritable, Permitted, Ambient []string }
}

type spec struct {
	Process *process
	Mounts  []struct {
		Destination, Type, Source string
		Options                   []string
	}
	Annotations map[string]string
	Linux       *struct {
		Devices []struct {
			Path, Type   string
			Major, Minor int64
		}
		Resources *struct {
			Devices []struct {
				Allow        bool
				Type, Access string
				Major, Minor *int64
			}
		}
		Namespaces []struct{ Type, Path string }
	}
	Root  *struct{ Path string }
	Hooks *map[string][]struct {
		Path      string
		Args, Env []string
	}
}

type checkpoint struct {
	Data struct {
		PodDeviceEntries []struct {
			PodUID, ContainerName, ResourceName string
			DeviceIDs                           map[string][]string
			AllocResp                           []byte
		}
	}
}

type claims struct {
	Kind               string
	APIVersion         string `json:"apiVersion"`
	ClaimInfoStateList []struct {
		Namespace, ClaimName string
		PodUIDs              map[string]struct{}
		DriverState          map[string]struct {
			Devices []struct{ RequestNames, CDIDeviceIDs []string }
		}
	}
}

func main() {
	in := bufio.NewReader(os.Stdin)
	for {
		var kind string
		var size int
		if _, err := fmt.Fscanf(in, "%s %d\n", &kind, &size); err != nil {
			return
		}
		data := make([]byte, size)
		if _, err := io.ReadFull(in, data); err != nil {
			return
		}
		value := map[string]interface{}{
			"config": &spec{}, "process": &process{}, "checkpoint": &checkpoint{}, "claims": &claims{},
		}[kind]
		var answer []byte
		if json.NewDecoder(bytes.NewReader(data)).Decode(value) == nil {
			answer, _ = json.Marshal(value)
		}
		os.Stdout.Write(append(answer, '\n'))
	}
}
