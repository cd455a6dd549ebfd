// Decrypts values by docs/encryption.md with the JDK alone. Each line of stdin has, in hex and
// separated by blanks: the wrapping key, the context, the record's key ("-" if it has none), the
// encrypted value. Each line of stdout is the key id and the value in hex, or "refused".

import java.io.ByteArrayOutputStream;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;
import java.util.Scanner;
import javax.crypto.AEADBadTagException;
import javax.crypto.Cipher;
import javax.crypto.spec.GCMParameterSpec;
import javax.crypto.spec.SecretKeySpec;

public class DecryptValue {
    static final HexFormat HEX = HexFormat.of();

    static byte[] open(byte[] key, byte[] nonce, byte[] sealed, byte[] data) throws Exception {
        Cipher cipher = Cipher.getInstance("AES/GCM/NoPadding");
        cipher.init(
            Cipher.DECRYPT_MODE, new SecretKeySpec(key, "AES"), new GCMParameterSpec(128, nonce));
        cipher.updateAAD(data);
        return cipher.doFinal(sealed);
    }

    static byte[] next(ByteBuffer from, int count) {
        byte[] found = new byte[count];
        from.get(found);
        return found;
    }

    public static void main(String[] arguments) throws Exception {
        Scanner lines = new Scanner(System.in);
        while (lines.hasNextLine()) {
            String[] words = lines.nextLine().split(" ");
            byte[] context = HEX.parseHex(words[1]);
            ByteBuffer value = ByteBuffer.wrap(HEX.parseHex(words[3]));
            next(value, 4);
            byte[] keyId = next(value, Byte.toUnsignedInt(value.get()));
            byte[] wrapped = next(value, Short.toUnsignedInt(value.getShort()));
            byte[] head = new byte[value.position()];
            value.get(0, head);
            byte[] nonce = next(value, 12);
            byte[] sealed = next(value, value.remaining());

            ByteArrayOutputStream data = new ByteArrayOutputStream();
            data.write(head);
            data.write(ByteBuffer.allocate(4).putInt(context.length).array());
            data.write(context);
            data.write(words[2].equals("-") ? 0 : 1);
            if (!words[2].equals("-")) {
                data.write(HEX.parseHex(words[2].substring(1)));
            }
            try {
                ByteBuffer of = ByteBuffer.wrap(wrapped);
                byte[] wrapNonce = next(of, 12);
                byte[] dataKey =
                    open(HEX.parseHex(words[0]), wrapNonce, next(of, of.remaining()), keyId);
                byte[] plain = open(dataKey, nonce, sealed, data.toByteArray());
                System.out.println(
                    new String(keyId, StandardCharsets.UTF_8) + " " + HEX.formatHex(plain));
            } catch (AEADBadTagException refused) {
                System.out.println("refused");
            }
        }
    }
}
