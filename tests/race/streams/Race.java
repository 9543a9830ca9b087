import java.nio.ByteBuffer;
import java.time.Duration;
import java.util.ArrayList;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.TreeMap;
import java.util.concurrent.atomic.LongAdder;
import org.apache.kafka.common.serialization.Serde;
import org.apache.kafka.common.serialization.Serdes;
import org.apache.kafka.streams.KafkaStreams;
import org.apache.kafka.streams.StreamsBuilder;
import org.apache.kafka.streams.errors.StreamsUncaughtExceptionHandler.StreamThreadExceptionResponse;
import org.apache.kafka.streams.kstream.Consumed;
import org.apache.kafka.streams.kstream.Produced;
import org.apache.kafka.streams.processor.api.Processor;
import org.apache.kafka.streams.processor.api.ProcessorContext;
import org.apache.kafka.streams.processor.api.Record;
import org.apache.kafka.streams.state.KeyValueStore;
import org.apache.kafka.streams.state.Stores;

/**
 * Joules and samples of each workload in windows of ten seconds, exactly once, by Kafka Streams.
 *
 * <p>Race BROKERS PREFIX OUTPUT EVENTS STATE_FOLDER. Ends once so many events are read and what they make is committed.
 */
public final class Race {
  private static final long WINDOW = 10_000_000;
  private static final long GRACE = 2_000_000;
  private static final int COMMIT_MILLIS = 1_000;

  private static final LongAdder SEEN = new LongAdder();

  public static void main(String[] arguments) throws Exception {
    String brokers = arguments[0];
    String prefix = arguments[1];
    String output = arguments[2];
    long events = Long.parseLong(arguments[3]);
    Properties settings = new Properties();
    settings.put("application.id", output);
    settings.put("bootstrap.servers", brokers);
    settings.put("processing.guarantee", "exactly_once_v2");
    settings.put("num.stream.threads", "1");
    settings.put("commit.interval.ms", COMMIT_MILLIS);
    settings.put("statestore.cache.max.bytes", 64L << 20);
    settings.put("state.dir", arguments[4]);
    settings.put("replication.factor", 1);
    settings.put("max.task.idle.ms", 100L);
    settings.put("buffered.records.per.partition", "2000");
    settings.put("consumer.auto.offset.reset", "earliest");
    settings.put("consumer.max.poll.records", "2000");
    settings.put("consumer.fetch.max.wait.ms", "100");
    settings.put("producer.compression.type", "lz4");
    settings.put("producer.linger.ms", "5");

    Serde<Event> read = Serdes.serdeFrom((topic, event) -> new byte[0], (topic, value) -> {
      try {
        Event event = Event.parse(value);
        if (event != null) {
          SEEN.increment();
        }
        return event;
      } catch (java.io.IOException error) {
        throw new IllegalStateException(error);
      }
    });
    StreamsBuilder builder = new StreamsBuilder();
    builder.addStateStore(Stores.keyValueStoreBuilder(
        Stores.inMemoryKeyValueStore("state"), Serdes.String(), Serdes.ByteArray()).withCachingEnabled());
    Consumed<String, Event> how = Consumed.with(Serdes.String(), read).withTimestampExtractor(
        (record, before) -> record.value() instanceof Event event ? event.micros / 1_000 : Math.max(before, 0));
    builder.stream(List.of(prefix + "gpu.telemetry.v1", prefix + "training.progress.v1"), how)
        .process(Windows::new, "state")
        .to(output, Produced.with(Serdes.String(), Serdes.String()));
    KafkaStreams streams = new KafkaStreams(builder.build(), settings);
    streams.setUncaughtExceptionHandler(error -> {
      error.printStackTrace();
      Runtime.getRuntime().halt(1);
      return StreamThreadExceptionResponse.SHUTDOWN_CLIENT;
    });
    streams.start();
    while (SEEN.sum() < events) {
      Thread.sleep(20);
    }
    Thread.sleep(COMMIT_MILLIS + 300);
    streams.close(Duration.ofSeconds(30));
    Runtime.getRuntime().halt(0);
  }

  /** Sums of an open window. */
  private static final class Sums {
    double joules;
    double samples;
  }

  /** What is summed of a workload: open windows, and the last progress. The newest sample of each GPU is in the store under its name. */
  private static final class Workload {
    final TreeMap<Long, Sums> open = new TreeMap<>();
    long progressMicros = Long.MIN_VALUE;
    double samplesTotal;
  }

  private static final class Windows implements Processor<String, Event, String, String> {
    private final Map<String, Workload> workloads = new HashMap<>();
    private ProcessorContext<String, String> context;
    private KeyValueStore<String, byte[]> state;
    private long closed = Long.MIN_VALUE;

    @Override
    public void init(ProcessorContext<String, String> context) {
      this.context = context;
      state = context.getStateStore("state");
    }

    @Override
    public void process(Record<String, Event> record) {
      Event event = record.value();
      if (event == null) {
        return;
      }
      Workload workload = workloads.computeIfAbsent(record.key(), key -> new Workload());
      long start = start(event.micros);
      if (event.isTelemetry) {
        byte[] before = state.get(event.device);
        if (before != null) {
          ByteBuffer sample = ByteBuffer.wrap(before);
          long micros = sample.getLong();
          if (micros >= event.micros) {
            return;
          }
          add(workload, micros, event.micros, event.joulesTotal - sample.getDouble(), true);
        }
        state.put(event.device, ByteBuffer.allocate(16).putLong(event.micros).putDouble(event.joulesTotal).array());
      } else {
        if (workload.progressMicros != Long.MIN_VALUE && workload.progressMicros < event.micros) {
          add(workload, workload.progressMicros, event.micros, event.samplesTotal - workload.samplesTotal, false);
        }
        workload.progressMicros = event.micros;
        workload.samplesTotal = event.samplesTotal;
        state.put(record.key(), ByteBuffer.allocate(16).putLong(event.micros).putDouble(event.samplesTotal).array());
      }
      save(record.key(), workload, start);
      closeWindows();
    }

    /** Adds what a counter rose by to the windows that the time touches. */
    private static void add(Workload workload, long from, long to, double rise, boolean isEnergy) {
      for (long start = start(from); start < to; start += WINDOW) {
        double part = (double) (Math.min(to, start + WINDOW) - Math.max(from, start)) / (to - from);
        if (part <= 0) {
          continue;
        }
        Sums sums = workload.open.computeIfAbsent(start, key -> new Sums());
        if (isEnergy) {
          sums.joules += rise * part;
        } else {
          sums.samples += rise * part;
        }
      }
    }

    /** What a crash must not lose; the store's cache writes it once a commit. */
    private void save(String key, Workload workload, long start) {
      Sums sums = workload.open.get(start);
      if (sums != null) {
        state.put(key + start, ByteBuffer.allocate(16).putDouble(sums.joules).putDouble(sums.samples).array());
      }
    }

    private void closeWindows() {
      long due = start(context.currentStreamTimeMs() * 1_000 - GRACE);
      if (due <= closed) {
        return;
      }
      closed = due;
      for (Map.Entry<String, Workload> workload : workloads.entrySet()) {
        TreeMap<Long, Sums> open = workload.getValue().open;
        for (long start : new ArrayList<>(open.headMap(due).keySet())) {
          Sums sums = open.remove(start);
          state.delete(workload.getKey() + start);
          String line = Event.window(workload.getKey(), start, sums.joules, sums.samples);
          context.forward(new Record<>(workload.getKey(), line, (start + WINDOW) / 1_000));
        }
      }
    }

    private static long start(long micros) {
      return micros - Math.floorMod(micros, WINDOW);
    }
  }
}
