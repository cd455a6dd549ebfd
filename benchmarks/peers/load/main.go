// Appends of many clients to one system, each with one append in flight.
//
//	load raftlog ADDRESS CLIENTS COUNT PATH   frames of requests in a file, those of each client together
//	load etcd ADDRESS CLIENTS COUNT PREFIX    puts of new keys over gRPC
//	load txn ADDRESS CLIENTS COUNT PREFIX     puts under the condition that the key is new
//	load gateway ADDRESS CLIENTS COUNT PREFIX puts of new keys through etcd's HTTP gateway
//	load nats ADDRESS CLIENTS COUNT SUBJECT   publishes to a stream
//
// COUNT is that of one client. Each client has its own connection. The raftlog frames of one
// connection with CLIENTS requests in flight are those of "load window". Prints the seconds from
// the first request to the last response and the median milliseconds of one, as JSON. A sixth
// argument, VALUE_BYTES, is the size of the values of etcd and NATS, 100 without it.
package main

import (
	"bufio"
	"bytes"
	"context"
	"encoding/binary"
	"encoding/json"
	"fmt"
	"io"
	"log"
	"net"
	"net/http"
	"os"
	"sort"
	"strconv"
	"sync"
	"time"

	"github.com/nats-io/nats.go"
	"github.com/nats-io/nats.go/jetstream"
	clientv3 "go.etcd.io/etcd/client/v3"
)

var valueBytes = 100

// appendOne appends the value with a number, and returns when it is acknowledged.
type appendOne func(number int) error

func value(number int) []byte {
	data := make([]byte, valueBytes)
	for at := range data {
		data[at] = byte(number*31 + at*17)
	}
	return data
}

// responseError returns the error of a Produce response, version 11, after its length.
func responseError(body []byte) error {
	at := 4 + 1 + 1     // correlation id, tagged fields of the header, count of topics
	at += int(body[at]) // the topic's name, after its length plus one
	at += 1 + 4         // count of partitions, index
	code := int16(binary.BigEndian.Uint16(body[at:]))
	if code != 0 {
		return fmt.Errorf("raftlog's error %d", code)
	}
	return nil
}

func readResponse(from *bufio.Reader) error {
	var length [4]byte
	if _, err := io.ReadFull(from, length[:]); err != nil {
		return err
	}
	body := make([]byte, binary.BigEndian.Uint32(length[:]))
	if _, err := io.ReadFull(from, body); err != nil {
		return err
	}
	return responseError(body)
}

func readFrames(path string) [][]byte {
	data, err := os.ReadFile(path)
	check(err)
	var frames [][]byte
	for len(data) > 0 {
		size := 4 + int(binary.BigEndian.Uint32(data))
		frames = append(frames, data[:size])
		data = data[size:]
	}
	return frames
}

func raftlogClients(address string, clients, count int, path string) []appendOne {
	frames := readFrames(path)
	var found []appendOne
	for client := range clients {
		peer, err := net.Dial("tcp", address)
		check(err)
		reader, own := bufio.NewReader(peer), frames[client*count:(client+1)*count]
		found = append(found, func(number int) error {
			if _, err := peer.Write(own[number]); err != nil {
				return err
			}
			return readResponse(reader)
		})
	}
	return found
}

// window sends all frames over one connection, with a number of them in flight.
func window(address string, clients, count int, path string) (float64, []float64) {
	frames := readFrames(path)
	peer, err := net.Dial("tcp", address)
	check(err)
	reader := bufio.NewReader(peer)
	sent := make([]time.Time, len(frames))
	times := make([]float64, 0, len(frames))
	room := make(chan struct{}, clients)
	start := time.Now()
	go func() {
		for number, frame := range frames {
			room <- struct{}{}
			sent[number] = time.Now()
			_, err := peer.Write(frame)
			check(err)
		}
	}()
	for number := range frames {
		check(readResponse(reader))
		times = append(times, 1000*time.Since(sent[number]).Seconds())
		<-room
	}
	return time.Since(start).Seconds(), times
}

func etcdClients(address string, clients int, prefix string, isConditional bool) []appendOne {
	var found []appendOne
	for client := range clients {
		peer, err := clientv3.New(clientv3.Config{Endpoints: []string{address}})
		check(err)
		found = append(found, func(number int) error {
			key := fmt.Sprintf("%s-%d-%d", prefix, client, number)
			if !isConditional {
				_, err := peer.Put(context.Background(), key, string(value(number)))
				return err
			}
			answer, err := peer.Txn(context.Background()).
				If(clientv3.Compare(clientv3.CreateRevision(key), "=", 0)).
				Then(clientv3.OpPut(key, string(value(number)))).Commit()
			if err == nil && !answer.Succeeded {
				err = fmt.Errorf("the key %s exists", key)
			}
			return err
		})
	}
	return found
}

func gatewayClients(address string, clients int, prefix string) []appendOne {
	var found []appendOne
	for client := range clients {
		peer := &http.Client{Transport: &http.Transport{}}
		found = append(found, func(number int) error {
			key := fmt.Sprintf("%s-%d-%d", prefix, client, number)
			put, err := json.Marshal(map[string][]byte{"key": []byte(key), "value": value(number)})
			check(err)
			answer, err := peer.Post(
				"http://"+address+"/v3/kv/put", "application/json", bytes.NewReader(put))
			if err != nil {
				return err
			}
			defer answer.Body.Close()
			if answer.StatusCode != http.StatusOK {
				return fmt.Errorf("the gateway answered %s", answer.Status)
			}
			_, err = io.Copy(io.Discard, answer.Body)
			return err
		})
	}
	return found
}

func natsClients(address string, clients int, subject string) []appendOne {
	var found []appendOne
	for range clients {
		peer, err := nats.Connect("nats://" + address)
		check(err)
		stream, err := jetstream.New(peer)
		check(err)
		if len(found) == 0 {
			_, err = stream.CreateOrUpdateStream(context.Background(), jetstream.StreamConfig{
				Name: subject, Subjects: []string{subject}, Replicas: 3, Storage: jetstream.FileStorage})
			check(err)
		}
		found = append(found, func(number int) error {
			_, err := stream.Publish(context.Background(), subject, value(number))
			return err
		})
	}
	return found
}

// measure lets all clients append at once, after a first append of each that is not counted.
func measure(clients []appendOne, count int) (float64, []float64) {
	times := make([][]float64, len(clients))
	begin := make(chan struct{})
	var ready, done sync.WaitGroup
	for client, appendNext := range clients {
		ready.Add(1)
		done.Add(1)
		go func() {
			defer done.Done()
			check(appendNext(0))
			ready.Done()
			<-begin
			for number := 1; number < count; number++ {
				start := time.Now()
				check(appendNext(number))
				times[client] = append(times[client], 1000*time.Since(start).Seconds())
			}
		}()
	}
	ready.Wait()
	start := time.Now()
	close(begin)
	done.Wait()
	elapsed := time.Since(start).Seconds()
	var all []float64
	for _, own := range times {
		all = append(all, own...)
	}
	return elapsed, all
}

func check(err error) {
	if err != nil {
		log.Fatal(err)
	}
}

func main() {
	system, address, last := os.Args[1], os.Args[2], os.Args[5]
	clients, err := strconv.Atoi(os.Args[3])
	check(err)
	count, err := strconv.Atoi(os.Args[4])
	check(err)
	if len(os.Args) > 6 {
		valueBytes, err = strconv.Atoi(os.Args[6])
		check(err)
	}
	var elapsed float64
	var times []float64
	switch system {
	case "raftlog":
		elapsed, times = measure(raftlogClients(address, clients, count, last), count)
	case "window":
		elapsed, times = window(address, clients, count, last)
	case "etcd", "txn":
		elapsed, times = measure(etcdClients(address, clients, last, system == "txn"), count)
	case "gateway":
		elapsed, times = measure(gatewayClients(address, clients, last), count)
	case "nats":
		elapsed, times = measure(natsClients(address, clients, last), count)
	default:
		log.Fatalf("unknown system %s", system)
	}
	sort.Float64s(times)
	check(json.NewEncoder(os.Stdout).Encode(map[string]float64{
		"per_s": float64(len(times)) / elapsed, "median_ms": times[len(times)/2]}))
}
